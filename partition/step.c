#include "partition/step_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/rounds.h"

#include <math.h>
#include <string.h>

/* Steps run, and those before the ones that count: long enough to be in the swing of it, and a multiple of the turns that round-robin
 * takes. */
enum { STEPS_FLUSHED = 4, STEPS_JOINED = 12, STEPS_BEFORE = 3, RATE_TURNS = 3 };

/* Of gradients, behind each activation of the slot beside which they go down: as src/run/bulk.c has it. */
static const double WINDOW_BYTES = 128 << 20;
/* The same up, of what devices make weights of: src/run/made.c. */
static const double MADE_WINDOW_BYTES = 256 << 20;

/* The host may be at work for so much of a step that moves the bytes of two passes (offload/updater.c). */
static const double BUSY_MOST = 0.95;

static struct rh_stage stage_of(const struct stepping *at, int s)
{
	const struct rh_partition *cuts = at->request->cuts;
	return s < at->forward ? cuts->forward[s] : cuts->backward[s - at->forward];
}

static const struct rh_layer_cost *layer_of(const struct stepping *at, int l)
{
	return &at->request->shorter->costs->layer[l];
}

/* Layers go up as they become free. */
static double upload_layers(const struct stepping *at, struct rh_stage stage, int gated, double begin)
{
	double up = at->request->rates.up_bytes_per_s, t = begin;
	for (int i = stage.lo; i < stage.hi; i++) {
		int next = i, before = 0; /* the i-th by gate */
		for (int l = stage.lo; gated && l < stage.hi; l++) {
			before = 0;
			for (int k = stage.lo; k < stage.hi; k++)
				before += at->gate[k] < at->gate[l] || (at->gate[k] == at->gate[l] && k < l);
			if (before == i - stage.lo)
				next = l;
		}
		t = (gated ? rh_max_double(t, at->gate[next]) : t) + step_take((double)layer_of(at, next)->upload_bytes, up);
	}
	return t;
}

static double free_at(const struct stepping *at, struct rh_stage stage)
{
	double t = 0;
	for (int l = stage.lo; l < stage.hi; l++)
		t = rh_max_double(t, at->gate[l]);
	return t;
}

/* When the sums that a backward slot adds to are there. */
static double sums_there(const struct stepping *at, const struct lane *lane, int s, double carried)
{
	double way = step_take(carried, at->request->rates.up_bytes_per_s), left = carried > 0 ? at->whole_before[s] + way : 0;
	return rh_max_double(left, at->request->sums_apart ? 0 : lane->room_s) + way;
}

/* A slot's sums are cleared or rounded, as fast as the device's memory is. */
static double sums_take(struct stepping *at, int s, double bytes)
{
	double seconds =
	        s < at->forward ? 0 : step_take(step_trained_in(at, stage_of(at, s)) * bytes, at->request->rates.device_bytes_per_s);
	at->busy_s += seconds;
	return seconds;
}

/* When the slot may compute: its weights go up while the device's slot before runs, with that slot's activations. */
static double slot_uploaded(struct stepping *at, struct lane *lane, int s, int64_t round, int64_t count)
{
	const struct rh_step_request *request = at->request;
	struct rh_stage stage = stage_of(at, s);
	double begin = rh_max_double(lane->up_s, lane->ended_s[1]), up = request->rates.up_bytes_per_s;
	double bytes = (double)rh_costs_upload_bytes(request->shorter->costs, stage.lo, stage.hi);
	double carried = s >= at->forward && round ? step_trained_in(at, stage) * request->bytes.carried : 0;
	double ahead = lane->activation_bytes + (request->sums_apart ? carried : 0);
	int first_pass = s <= at->forward, timed = at->update_rate > 0;
	lane->up_s = upload_layers(at, stage, first_pass && timed, begin + step_take(ahead, up));
	if (s >= at->forward)
		lane->up_s = rh_max_double(lane->up_s, sums_there(at, lane, s, carried));
	double boundary = (double)layer_of(at, stage.lo ? stage.lo - 1 : 0)->boundary_bytes;
	lane->activation_bytes = stage.lo ? boundary * (double)count * (s > at->forward ? 2 : 1) : 0;
	at->copied_bytes += bytes + carried + lane->activation_bytes;
	at->uploaded_s = rh_max_double(at->uploaded_s, lane->up_s);
	double cleared = lane->free_s + sums_take(at, s, round ? 0 : request->bytes.cleared);
	double ready = rh_max_double(rh_max_double(lane->up_s, cleared), request->stale ? 0 : at->taken_s);
	return first_pass && !timed ? rh_max_double(ready, free_at(at, stage)) : ready; /* the schedule alone: new weights are up at once */
}

/* The slot whose output is the saved input of backward stage `stage`: the forward stage that reaches it. */
static int saved_by(const struct stepping *at, struct rh_stage stage)
{
	for (int f = 0; f < at->forward; f++)
		if (at->request->cuts->forward[f].lo < stage.lo && stage.lo <= at->request->cuts->forward[f].hi)
			return f;
	return -1;
}

static void ended(struct stepping *at, struct lane *lane, int s, double t)
{
	lane->free_s = t;
	lane->ended_s[1] = lane->ended_s[0];
	lane->ended_s[0] = t;
	at->whole[s] = t;
	at->last_s = rh_max_double(at->last_s, t);
}

/* Leaves after gradients that are still on their way. */
static double leaves(const struct stepping *at, const struct lane *lane, double t)
{
	return rh_max_double(t, at->request->gradients_block ? lane->down_s : 0);
}

static void run_micro_batches(struct stepping *at, struct lane *lane, int s, int64_t count, int64_t longer, double t)
{
	struct rh_stage stage = stage_of(at, s);
	int saved = s > at->forward ? saved_by(at, stage) : -1;
	for (int64_t m = 0; m < count; m++) {
		const struct rh_cost_sums *sums = m < longer ? at->request->longer : at->request->shorter;
		double hop = sums->costs->hop_s, first = 0, rest;
		if (s <= at->forward) {
			rest = rh_cost_stage(sums, s < at->forward ? RH_PASS_FORWARD : RH_PASS_FUSED, stage.lo, stage.hi);
		} else {
			first = rh_cost_recompute(sums, stage.lo, stage.hi);
			rest = rh_cost_backward(sums, stage.lo, stage.hi);
			if (saved >= 0)
				t = rh_max_double(t, at->end[saved * at->most + m] + hop);
		}
		t += first;
		if (s)
			t = rh_max_double(t, at->end[(s - 1) * at->most + m] + hop);
		t += rest;
		at->busy_s += first + rest;
		at->end[s * at->most + m] = leaves(at, lane, t);
	}
	ended(at, lane, s, t);
}

static double held(const struct stepping *at, int s)
{
	struct rh_stage stage = stage_of(at, s);
	enum rh_pass pass = s < at->forward ? RH_PASS_FORWARD : s == at->forward ? RH_PASS_FUSED : RH_PASS_BACKWARD;
	return rh_cost_held(at->request->shorter, pass, stage.lo, stage.hi);
}

/* The same by the first and the last alone, where all take the same (waves.h says why). */
static void run_first_and_last(struct stepping *at, struct lane *lane, int s, int64_t count, double ready)
{
	const struct rh_cost_sums *sums = at->request->shorter;
	struct rh_stage stage = stage_of(at, s);
	double hop = sums->costs->hop_s, recompute = 0, rest, last = 0;
	if (s <= at->forward) {
		rest = rh_cost_stage(sums, s < at->forward ? RH_PASS_FORWARD : RH_PASS_FUSED, stage.lo, stage.hi);
	} else {
		int saved = saved_by(at, stage);
		recompute = rh_cost_recompute(sums, stage.lo, stage.hi);
		rest = rh_cost_backward(sums, stage.lo, stage.hi);
		if (saved >= 0) {
			ready = rh_max_double(ready, at->end[2 * saved] + hop);
			last = at->end[2 * saved + 1] + hop + recompute + rest;
		}
	}
	double first = ready + recompute;
	double behind = s ? held(at, s - 1) : 0, ahead = behind > 0 ? recompute : 0;
	if (s) {
		first = rh_max_double(first, at->end[2 * (s - 1)] + hop + behind + ahead);
		last = rh_max_double(last, at->end[2 * (s - 1) + 1] + hop + ahead + rest);
	}
	first += rest;
	last = rh_max_double(last, first + (double)(count - 1) * (recompute + rest)) +
	       RH_HELD_AT_BEGIN * held(at, s + 1 < at->stages ? s + 1 : 0);
	at->busy_s += (double)count * (recompute + rest);
	at->end[2 * s] = leaves(at, lane, first);
	at->end[2 * s + 1] = leaves(at, lane, last);
	ended(at, lane, s, last);
}

static void surge(struct surge *surge, double begin, double end, double bytes)
{
	if (bytes <= 0)
		return;
	surge->begin = surge->bytes > 0 ? step_lesser(begin, surge->begin) : begin;
	surge->end = surge->bytes > 0 ? rh_max_double(surge->end, end) : end;
	surge->bytes += bytes;
}

/* What weights are made of came up while the device's last slot computed; now they are made and go down, then their gradients. */
static double make_weights(struct stepping *at, struct lane *lane, struct rh_stage stage, double t)
{
	const struct rh_step_bytes *bytes = &at->request->bytes;
	const struct rh_step_rates *rates = &at->request->rates;
	double made = step_made_in(at, stage), down = step_lesser(rates->down_bytes_per_s, rates->host_bytes_per_s / at->request->devices);
	down = at->update_rate > 0 ? down : 0; /* all devices at the same time: the host's memory takes no more */
	if (made > 0 && at->update_rate > 0) {
		lane->up_s = rh_max_double(lane->up_s, lane->ended_s[1]) + step_take(made * bytes->made_up, rates->up_bytes_per_s);
		t = rh_max_double(t, rh_max_double(lane->free_s, lane->up_s) + step_take(made * bytes->made, rates->device_bytes_per_s));
	}
	for (int l = stage.lo; l < stage.hi; l++)
		at->made_s[l] = t += step_take(step_made_in(at, (struct rh_stage){l, l + 1}) * bytes->made_upper, down);
	for (int l = stage.hi - 1; l >= stage.lo; l--) {
		double part = step_made_in(at, (struct rh_stage){l, l + 1});
		t += step_take(part * bytes->gradient, down);
		if (part >= step_trained_in(at, (struct rh_stage){l, l + 1})) /* else the host waits for the other part alone */
			at->arrived[l] = t;
	}
	t += step_take(made * bytes->made_lower, down);
	if (made > 0) { /* up in the first windows */
		double rate = MADE_WINDOW_BYTES / rh_cost_stage(at->request->shorter, RH_PASS_BACKWARD, stage.lo, stage.hi);
		double up = lane->ended_s[1] + step_take(made * bytes->made_up, step_lesser(rate, rates->up_bytes_per_s));
		surge(&at->surge[UP], lane->ended_s[1], up < lane->free_s ? up : lane->free_s, made * bytes->made_up);
		surge(&at->surge[DOWN], lane->free_s, t, made * (bytes->made_upper + bytes->made_lower + bytes->gradient));
	}
	return t;
}

/* Gradients leave from the top layer of the stage down; in the last round they are the host's then. */
static void download(struct stepping *at, struct lane *lane, int s, int last_round)
{
	const struct rh_step_request *request = at->request;
	struct rh_stage stage = stage_of(at, s);
	double each = last_round ? request->bytes.gradient : request->bytes.carried;
	double rate = at->update_rate > 0 ? request->rates.down_bytes_per_s : 0;
	lane->free_s += sums_take(at, s, last_round ? request->bytes.rounded : 0);
	double t = rh_max_double(lane->down_s, lane->free_s);
	lane->room_s = lane->free_s + (last_round ? 0 : step_take(step_trained_in(at, stage) * each, request->rates.down_bytes_per_s));
	int last = last_round && s + request->devices >= at->stages; /* of its device: all at once */
	if (at->update_rate > 0 && !request->gradients_block && !last)
		rate = step_lesser(rate, WINDOW_BYTES / rh_cost_stage(request->shorter, s > at->forward ? RH_PASS_BACKWARD : RH_PASS_FUSED,
		                                                      stage.lo, stage.hi));
	double begins = t, before = at->copied_bytes;
	for (int l = stage.hi - 1; l >= stage.lo; l--) {
		struct rh_stage layer = {l, l + 1};
		double bytes = step_trained_in(at, layer) * each;
		t += step_take(bytes - (last ? step_made_in(at, layer) * each : 0), rate);
		at->copied_bytes += bytes - (last ? step_made_in(at, layer) * each : 0);
		if (last_round)
			at->arrived[l] = t;
	}
	if (last_round)
		surge(&at->surge[GRADIENTS], begins, t, at->copied_bytes - before);
	lane->down_s = last ? make_weights(at, lane, stage, t) : t;
}

static void run_round(struct stepping *at, int64_t round)
{
	const struct rh_step_request *request = at->request;
	int64_t first, sequences;
	rh_round_range(request->sequences, request->rounds, round, &first, &sequences);
	int64_t count = request->round_micro_batches < sequences ? request->round_micro_batches : sequences;
	int64_t longer = sequences - rh_step_shorter(request->sequences, request->rounds, request->round_micro_batches) * count;
	double *swap = at->whole_before;
	at->whole_before = at->whole;
	at->whole = swap;
	for (int s = 0; s < at->stages; s++) {
		struct lane *lane = &at->lane[at->turn];
		at->turn = (at->turn + 1) % request->devices;
		double ready = slot_uploaded(at, lane, s, round, count);
		double boundary = (double)layer_of(at, stage_of(at, s).lo)->boundary_bytes;
		if (at->uniform)
			run_first_and_last(at, lane, s, count, ready);
		else
			run_micro_batches(at, lane, s, count, longer, ready);
		at->copied_bytes += boundary * (double)count; /* its output, down */
		if (s >= at->forward)
			download(at, lane, s, round + 1 == request->rounds);
	}
}

/* What rounds go on from, into at->rounds or back. */
static void move_state(struct stepping *at, int back)
{
	double *value = at->rounds.value;
	size_t n = 0;
	for (int d = 0; d < at->request->devices; d++) {
		struct lane *lane = &at->lane[d];
		double *const time[] = {&lane->free_s, &lane->up_s, &lane->down_s, &lane->ended_s[0], &lane->ended_s[1], &lane->room_s};
		for (size_t i = 0; i < sizeof time / sizeof *time; i++, n++)
			*(back ? time[i] : &value[n]) = *(back ? &value[n] : time[i]);
	}
	for (int s = 0; s < at->stages; s++, n++)
		*(back ? &at->whole[s] : &value[n]) = *(back ? &value[n] : &at->whole[s]);
	double *const rest[] = {&at->uploaded_s, &at->last_s, &at->busy_s, &at->copied_bytes};
	for (size_t i = 0; i < sizeof rest / sizeof *rest; i++, n++)
		*(back ? rest[i] : &value[n]) = *(back ? &value[n] : rest[i]);
	RH_ASSERT(n == at->rounds.all);
}

/* Rounds that come to repeat need not be run. */
static int64_t skip_rounds(struct stepping *at, int64_t round, int64_t left)
{
	move_state(at, 0);
	int64_t skipped = steady_skip(&at->steady, at->rounds, round, left);
	if (skipped)
		move_state(at, 1);
	return skipped;
}

static int64_t divisor(int64_t a, int64_t b)
{
	return b ? divisor(b, a % b) : a;
}

static void run_rounds(struct stepping *at)
{
	const struct rh_step_request *request = at->request;
	int64_t rounds = request->rounds, longer = request->sequences % rounds, alike = 0;
	int64_t again = request->devices / divisor(at->stages, request->devices); /* rounds, after which turns are the same */
	for (int64_t r = 0; r < rounds; r++) {
		int64_t next = r < 1 ? 1 : r < longer ? longer : r + 1 < rounds ? rounds - 1 : rounds; /* of another kind */
		run_round(at, r);
		if (r <= 1 || r == longer || r + 1 == rounds) {
			alike = r;
			steady_begin(&at->steady);
		}
		if (at->uniform && at->update_rate <= 0 && next - r > 1 && (r - alike) % again == 0)
			r += skip_rounds(at, r - alike, next - 1 - r);
	}
}

/* The next step's first weights go up beside the last slots: most of them, as few wait for an update. */
static void next_goes_up(struct stepping *at)
{
	for (int s = 0; s < at->stages && s < at->request->devices; s++) {
		const struct lane *lane = &at->lane[(at->turn + s) % at->request->devices];
		struct rh_stage stage = stage_of(at, s);
		double bytes = (double)rh_costs_upload_bytes(at->request->shorter->costs, stage.lo, stage.hi);
		double begins = rh_max_double(lane->up_s, lane->ended_s[1]);
		surge(&at->surge[NEXT], begins, begins + step_take(bytes, at->request->rates.up_bytes_per_s), bytes);
	}
}

static void end_step(struct stepping *at)
{
	if (at->request->update == RH_STEP_AS_A_WHOLE) {
		step_update_as_a_whole(at);
		return;
	}
	if (!at->request->stale)
		next_goes_up(at);
	if (at->request->stale)
		memcpy(at->gate, at->next_gate, (size_t)at->layers * sizeof *at->gate);
	step_update_as_they_arrive(at, at->request->stale ? at->next_gate : at->gate);
}

/* Steps one after the other; the mean of those that count. */
static double run_steps(struct stepping *at, double update_rate)
{
	const struct rh_step_request *request = at->request;
	int steps = request->stale ? STEPS_JOINED : STEPS_FLUSHED, before = request->stale ? STEPS_BEFORE : 1;
	size_t gates = (size_t)at->layers * sizeof *at->gate;
	double begun = 0;
	memset(at->lane, 0, (size_t)request->devices * sizeof *at->lane);
	memset(at->gate, 0, gates);
	memset(at->next_gate, 0, gates);
	at->turn = 0;
	at->worker_s = at->last_s = at->taken_s = 0;
	at->update_rate = update_rate;
	for (int step = 0; step < steps; step++) {
		if (step == before + 1)
			begun = at->last_s;
		at->busy_s = at->copied_bytes = at->updated_bytes = at->worked_s = at->uploaded_s = 0;
		memset(at->surge, 0, sizeof at->surge);
		run_rounds(at);
		end_step(at);
	}
	return (at->last_s - begun) / (steps - 1 - before);
}

int64_t rh_step_shorter(int64_t sequences, int64_t rounds, int64_t round_micro_batches)
{
	int64_t shorter = sequences / rounds / round_micro_batches;
	return shorter > 0 ? shorter : 1;
}

static int begin(const struct rh_step_request *request, struct stepping *at)
{
	const struct rh_partition *cuts = request->cuts;
	int layers = request->shorter->costs->layers, stages = cuts->forward_stages + cuts->backward_stages;
	*at = (struct stepping){.request = request,
	                        .layers = layers,
	                        .stages = stages,
	                        .forward = cuts->forward_stages,
	                        .uniform = request->longer == request->shorter,
	                        .most = request->longer == request->shorter ? 2 : request->round_micro_batches};
	if (request->devices < 1 || request->rounds < 1 || request->round_micro_batches < 1 || request->sequences < request->rounds)
		return rh_fail(-EINVAL, "step: devices, rounds and micro-batches are counts from 1, and a round has a sequence");
	size_t s = (size_t)stages, l = (size_t)layers;
	at->lane = rh_alloc((size_t)request->devices, sizeof *at->lane);
	at->end = rh_alloc(s * (size_t)at->most + 2 * s, sizeof *at->end);
	at->gate = rh_alloc(7 * l, sizeof *at->gate);
	at->state = rh_alloc(l, sizeof *at->state);
	size_t values = 6 * (size_t)request->devices + s + 4;
	at->rounds = (struct steady_state){.value = rh_alloc(values, sizeof(double)), .times = values - 2, .all = values};
	if (!at->lane || !at->end || !at->gate || !at->state || !at->rounds.value || steady_create(values, &at->steady))
		return -ENOMEM;
	at->whole = at->end + s * (size_t)at->most;
	at->whole_before = at->whole + s;
	at->next_gate = at->gate + l;
	at->arrived = at->next_gate + l;
	at->made_s = at->arrived + l;
	at->owed = at->made_s + l;
	at->left = at->owed + l;
	at->each = at->left + l;
	return 0;
}

/* Copies and update share the host's memory: what the copies leave is the update's, over a period that depends on it. */
static void settle(struct stepping *at, struct rh_step_estimate *out)
{
	const struct rh_step_rates *rates = &at->request->rates;
	const struct rh_step_bytes *bytes = &at->request->bytes;
	double trained = step_trained_in(at, (struct rh_stage){0, at->layers}), whole = bytes->taken + bytes->updated + bytes->published;
	out->schedule_s = run_steps(at, 0);
	out->busy_s = at->busy_s;
	out->copied_bytes = at->copied_bytes;
	out->updated_bytes = trained * whole;
	at->in_two = bytes->weights > 0 && !at->request->stale;
	out->period_s = out->schedule_s;
	if (at->request->schedule_alone)
		return;
	double host = rates->host_bytes_per_s;
	for (int turn = 0; turn < RATE_TURNS; turn++) {
		double spread = out->copied_bytes - at->surge[GRADIENTS].bytes - at->surge[NEXT].bytes;
		double beside = rh_max_double(host - spread / out->period_s, host / 8);
		at->left_rate = beside;
		out->period_s = run_steps(at, step_lesser(rates->update_bytes_per_s, beside));
		at->in_two &= at->worked_s < BUSY_MOST * out->period_s;
	}
	if (at->request->update == RH_STEP_AS_THEY_ARRIVE)
		out->updated_bytes = at->updated_bytes;
	out->copied_bytes += at->surge[UP].bytes + at->surge[DOWN].bytes;
	double least = host > 0 ? (out->copied_bytes + out->updated_bytes) / host : 0;
	out->host_bound = least > out->period_s * (1 - 1e-3);
	out->period_s = rh_max_double(out->period_s, least);
}

int rh_step_estimate(const struct rh_step_request *request, struct rh_step_estimate *out)
{
	struct stepping at;
	*out = (struct rh_step_estimate){0};
	int rc = begin(request, &at);
	if (!rc) {
		settle(&at, out);
		out->bubble = 1 - out->busy_s / (request->devices * out->schedule_s);
		out->exposed = 1 - out->schedule_s / out->period_s;
	}
	rh_free(at.lane);
	rh_free(at.end);
	rh_free(at.gate);
	rh_free(at.state);
	rh_free(at.rounds.value);
	steady_free(&at.steady);
	return rc;
}
