/* Measures the arena that stages need, by emitting them into an arena without memory. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/stage_plan_internal.h"

#include <string.h>

enum { FEW = 4 }; /* alike layers in a stage: what one more adds is known from here on */

static int all_alike(const struct rh_model *model)
{
	int alike = model->first_trained <= 1;
	for (int l = 2; alike && l + 1 < model->layers; l++)
		alike = rh_layers_alike(model, 1, l, RH_ALIKE_IN_BYTES);
	return alike;
}

/* Of layers that are not all alike: the lowest run above first_trained of as many layers, each alike to the one in its place here. A stage
 * with an end of the model has none but itself. */
static int lowest_alike(const struct stage_planner *at, int lo, int hi)
{
	int first = (int)rh_max(at->request->model->first_trained, 0) + 1, like = 0;
	if (hi == at->layers)
		return lo;
	for (int low = first; low < lo; low++) {
		for (like = 0; like < hi - lo && at->kind[low + like] == at->kind[lo + like]; like++)
			;
		if (like == hi - lo)
			return low;
	}
	return lo;
}

/* The lowest layer that emits the same ops, of each layer. */
static void find_kinds(struct stage_planner *at)
{
	for (int l = 0; l < at->layers; l++)
		for (at->kind[l] = 0; !rh_layers_alike(at->request->model, at->kind[l], l, RH_ALIKE_IN_OPS);)
			at->kind[l]++;
}

/* The memo's cells: of alike layers those with neither end of the model, with the lower one, with the upper one, with neither end but the
 * lowest trained layer, by how many; then with both ends. */
static size_t cells(const struct stage_planner *at)
{
	return at->alike ? 4 * (FEW + 1) + 1 : (size_t)at->layers * (size_t)(at->layers + 1);
}

static struct plan_stage_bytes *cell(const struct stage_planner *at, enum pass pass, int lo, int hi)
{
	int bottom = lo == 0, top = hi == at->layers, lowest = lo == at->request->model->first_trained;
	int kind = bottom && top ? 4 : lowest && !bottom && !top ? 3 : bottom + 2 * top;
	if (!at->alike)
		return &at->memo[at->plain][pass][lo * (at->layers + 1) + hi];
	return &at->memo[at->plain][pass][kind * (FEW + 1) + (kind == 4 ? 0 : hi - lo - bottom - top)];
}

static struct plan_fated *fated_create(size_t layers)
{
	struct plan_fated *fated = rh_alloc(PLAN_FATED, sizeof *fated + layers * sizeof *fated->fates);
	struct rh_fates *fates = fated ? (struct rh_fates *)(fated + PLAN_FATED) : NULL;
	for (size_t i = 0; fated && i < PLAN_FATED; i++)
		fated[i].fates = fates + i * layers;
	return fated;
}

int plan_measure_open(struct stage_planner *at)
{
	const struct rh_model *model = at->request->model;
	struct rh_stage_plan_found *found = at->request->found;
	at->alike = all_alike(model);
	at->makes_plain = rh_model_makes_plain(model);
	size_t each = cells(at), passes = PASSES * (at->makes_plain ? PLAINS : 1);
	struct plan_stage_bytes *memo;
	if (found && found->stage && found->head_rows == model->head_rows) {
		memo = found->stage;
		at->fated = found->fated;
		*found = (struct rh_stage_plan_found){0};
	} else {
		memo = rh_alloc(passes * each, sizeof *memo);
		for (size_t i = 0; memo && i < passes * each; i++)
			memo[i].arena = -1;
		at->fated = fated_create((size_t)at->layers);
	}
	for (size_t p = 0; memo && p < passes; p++)
		at->memo[p / PASSES][p % PASSES] = memo + p * each;
	at->kind = rh_alloc((size_t)at->layers, sizeof *at->kind);
	if (at->kind && !at->alike)
		find_kinds(at);
	at->boundary = rh_alloc((size_t)at->layers + 1, sizeof *at->boundary);
	at->all_kept = rh_alloc((size_t)at->layers, sizeof *at->all_kept);
	for (int l = 0; at->all_kept && l < at->layers; l++)
		at->all_kept[l].kept = ~(rh_row_set)0;
	int rc = rh_stage_state_create(model, &at->state);
	return rc ? rc : !memo || !at->fated || !at->kind || !at->boundary || !at->all_kept ? -ENOMEM : 0;
}

void plan_measure_close(struct stage_planner *at)
{
	struct rh_stage_plan_found *found = at->request->found;
	rh_stage_state_free(&at->state);
	rh_free(at->kind);
	rh_free(at->boundary);
	rh_free(at->all_kept);
	struct rh_stage_plan_found now = {at->memo[0][0], at->fated, at->request->model->head_rows};
	if (found)
		rh_stage_plan_found_free(found);
	if (found && now.stage && now.fated)
		*found = now;
	else
		rh_stage_plan_found_free(&now);
}

void rh_stage_plan_found_free(struct rh_stage_plan_found *found)
{
	rh_free(found->stage);
	rh_free(found->fated);
	*found = (struct rh_stage_plan_found){0};
}

/* The forward of a stage that leaves activations, and its recompute, if there is any, and backward. */
static int emit_kept(struct stage_planner *at, struct rh_emit *emit, int lo, int hi, struct rh_view x, struct plan_stage_bytes *out)
{
	struct rh_arena kept = rh_arena_measuring(), saved = rh_arena_measuring();
	struct rh_view end = at->boundary[hi];
	emit->kept = &kept;
	emit->saved = &saved;
	int rc = rh_stage_forward(emit, lo, hi, x, at->boundary, NULL);
	int64_t bytes[RH_FATES];
	rh_stage_fate_bytes(emit, lo, hi, bytes);
	out->kept = bytes[RH_FATE_KEEP];
	out->saved = bytes[RH_FATE_SAVE];
	out->recomputes = bytes[RH_FATE_RECOMPUTE] > 0;
	RH_ASSERT(kept.used == out->kept && saved.used == out->saved);
	kept = saved = rh_arena_measuring();
	if (!rc && emit->shape.chunks)
		rc = rh_stage_carry(emit, lo, hi, x);
	kept = saved = rh_arena_measuring();
	if (!rc && out->recomputes)
		rc = rh_stage_recompute(emit, lo, hi, x, &at->state, NULL);
	else
		rh_stage_place(emit, lo, hi, x, &at->state);
	return rc ? rc : rh_stage_backward(emit, lo, hi, &at->state, end, x);
}

/* Emits one stage into an arena that measures, with activations of these fates in others; returns the peak. */
static int64_t emit_stage(struct stage_planner *at, enum pass pass, const struct rh_fates *fates, struct rh_stage stage, int infer,
                          struct plan_stage_bytes *out)
{
	const struct rh_model *model = at->request->model;
	const struct rh_micro_shape *shape = infer ? &at->request->infer : &at->request->train;
	static char *somewhere; /* where plain matrices lie is not asked */
	struct rh_arena arena = rh_arena_measuring(), deferred = rh_arena_measuring();
	struct rh_emit emit = {.model = model,
	                       .arena = &arena,
	                       .fates = infer ? NULL : fates,
	                       .deferred = at->request->deferral && !infer && pass != PASS_FORWARD ? &deferred : NULL,
	                       .shape = *shape,
	                       .dropout = infer ? 0 : model->dropout,
	                       .drop = infer ? (struct rh_model_dropout){0} : model->drop,
	                       .loss_scale = 1,
	                       .plain = at->plain == PLAIN_IN_ROOM ? &somewhere : NULL,
	                       .cache_rows = at->request->cache_rows};
	int lo = stage.lo, hi = stage.hi, rc;
	struct rh_view x = rh_boundary_view(model, lo, shape->tokens, (char *)(uintptr_t)RH_ALIGN);
	struct rh_view end = rh_boundary_view(model, hi, shape->tokens, x.data), saved = x;
	if (model->saves_narrow && pass == PASS_BACKWARD && lo > 0)
		saved = rh_narrow_boundary_view(model, lo, shape->tokens, x.data);
	struct rh_head_out head = {.loss = x, .hit = x};
	if (infer && at->request->infer_logits)
		head = (struct rh_head_out){.logits = x};
	else if (infer && shape->choices)
		head.choice = x;
	if (infer && shape->top)
		head.shares = x;
	at->boundary[hi] = end;
	if (pass == PASS_FORWARD || infer) {
		rc = rh_stage_forward(&emit, lo, hi, x, at->boundary, &head);
	} else if (fates) {
		rc = emit_kept(at, &emit, lo, hi, x, out);
	} else {
		rc = shape->chunks ? rh_stage_carry(&emit, lo, hi, saved) : 0;
		if (!rc)
			rc = rh_stage_recompute(&emit, lo, hi, saved, &at->state, &head);
		if (!rc)
			rc = rh_stage_backward(&emit, lo, hi, &at->state, end, x);
		if (!rc && emit.deferred)
			rc = rh_stage_weights(&emit, lo, hi, &at->state);
		out->deferred = deferred.peak;
		out->recomputes = 1;
	}
	at->boundary[hi] = (struct rh_view){0};
	RH_ASSERT(rc == 0); /* nothing is launched, so nothing can fail */
	return arena.peak;
}

static struct plan_stage_bytes measure(struct stage_planner *at, enum pass pass, int lo, int hi)
{
	struct plan_stage_bytes *memo = cell(at, pass, lo, hi);
	if (memo->arena >= 0)
		return *memo;
	int like = at->alike ? lo : lowest_alike(at, lo, hi);
	if (like < lo)
		return *memo = measure(at, pass, like, like + hi - lo);
	const struct rh_fates *fates = pass == PASS_KEPT ? at->all_kept : NULL;
	if (at->request->trains)
		memo->train = emit_stage(at, pass, fates, (struct rh_stage){lo, hi}, 0, memo);
	if (at->request->infer.tokens && pass != PASS_BACKWARD)
		memo->infer = emit_stage(at, pass, fates, (struct rh_stage){lo, hi}, 1, memo);
	memo->arena = rh_max(memo->train, memo->infer);
	return *memo;
}

static int64_t on(int64_t fewer, int64_t few, int more)
{
	return rh_min(few + rh_bytes_times(few - fewer, more), RH_BYTES_MOST);
}

struct plan_stage_bytes plan_stage_bytes(struct stage_planner *at, enum pass pass, int lo, int hi)
{
	int bottom = lo == 0, top = hi == at->layers, count = hi - lo - bottom - top, more = count - FEW;
	const struct rh_model *model = at->request->model;
	/* a text in chunks: a backward slot goes down through the chunks once, and each mixer needs all later ones first */
	int is_one = at->request->train.chunks || (model->saves_narrow && at->request->trains);
	int rounds = model->saves_narrow && at->request->trains && hi == at->layers && hi - lo > 1; /* not the head alone */
	if (pass != PASS_FORWARD && ((is_one && rh_model_carriers(model, lo, hi) > 1) || rounds))
		return (struct plan_stage_bytes){.arena = RH_BYTES_MOST, .train = RH_BYTES_MOST};
	if (!at->alike || (bottom && top))
		return measure(at, pass, lo, hi);
	if (!bottom &&
	    !top) { /* as many of them further down; the lowest trained layer makes no gradient of its input, which may take less */
		lo = (int)rh_min(lo, rh_max(at->request->model->first_trained, 0) + 1);
		hi = lo + count;
	}
	if (more <= 0)
		return measure(at, pass, lo, hi);
	if (top)
		lo += more;
	else
		hi -= more;
	struct plan_stage_bytes few = measure(at, pass, lo, hi), fewer = measure(at, pass, lo + top, hi - !top);
	few.train = on(fewer.train, few.train, more);
	few.infer = on(fewer.infer, few.infer, more);
	few.arena = rh_max(few.train, few.infer);
	few.kept = on(fewer.kept, few.kept, more);
	few.deferred = on(fewer.deferred, few.deferred, more);
	return few;
}

/* 1: the remembered stage emits what [lo, hi) does with these fates. Whether the lowest trained layer is among them counts too: it makes no
 * gradient of its input. */
static int is_fated_so(const struct stage_planner *at, const struct plan_fated *known, const struct rh_fates *fates, int lo, int hi)
{
	int low = known->stage.lo, count = hi - lo, first = at->request->model->first_trained;
	if (known->stage.hi - low != count || known->plain != at->plain || memcmp(known->fates, &fates[lo], (size_t)count * sizeof *fates))
		return 0;
	if (low == lo)
		return 1;
	if (!low || !lo || known->stage.hi == at->layers || hi == at->layers || (low <= first) != (lo <= first))
		return 0;
	for (int l = 0; !at->alike && l < count; l++)
		if (at->kind[low + l] != at->kind[lo + l])
			return 0;
	return 1;
}

struct plan_stage_bytes plan_fated_bytes(struct stage_planner *at, const struct rh_fates *fates, int lo, int hi)
{
	int place = 0;
	while (place < PLAN_FATED - 1 && !is_fated_so(at, &at->fated[place], fates, lo, hi))
		place++;
	struct plan_fated now = at->fated[place];
	if (!is_fated_so(at, &now, fates, lo, hi)) {
		now.stage = (struct rh_stage){lo, hi};
		now.plain = at->plain;
		now.bytes = (struct plan_stage_bytes){0};
		memcpy(now.fates, &fates[lo], (size_t)(hi - lo) * sizeof *fates);
		now.bytes.train = emit_stage(at, PASS_KEPT, fates, now.stage, 0, &now.bytes);
		now.bytes.infer = plan_stage_bytes(at, PASS_FORWARD, lo, hi).infer;
		now.bytes.arena = rh_max(now.bytes.train, now.bytes.infer);
	}
	memmove(&at->fated[1], &at->fated[0], (size_t)place * sizeof now);
	at->fated[0] = now;
	return now.bytes;
}

int64_t plan_least_kept(struct stage_planner *at)
{
	if (!at->alike || !at->request->trains || at->layers - 2 < FEW)
		return 0;
	int64_t before = 0, least = RH_BYTES_MOST;
	for (int count = 1; count <= FEW; count++) {
		int64_t kept = plan_stage_bytes(at, PASS_KEPT, 1, 1 + count).kept;
		least = rh_min(least, rh_min(kept / count, kept - before));
		before = kept;
	}
	return rh_max(least, 0);
}
