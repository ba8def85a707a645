/* Schedules whose stages update themselves: four CPU devices without a flush give what a plain loop gives that has one set of weights for
 * each stage and runs forwards, backwards and updates one after the other, in the order that the rule asks for; bit for bit. */
#include "train/deep.h"

#include "core/hooks.h"
#include "core/minmax.h"
#include "device/cpu/kernels.h"
#include "run/check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 20, BLOCKS = 6, MICROS = 3, ALL = STEPS * MICROS, STAGES_MOST = 4, ACTS = 4 << 20 };

struct what {
	const char *schedule, *model, *device;
	int stages;
	enum rh_dtype dtype;
	int64_t lora_r; /* 0: full */
	double dropout;
	const int64_t *admission_limit; /* NULL: the schedule's own */
	double balance;                 /* router_aux_loss_coef */
	enum rh_paci_backward backward;
	int64_t delay;     /* backwards after an update until it is published; 0: at once */
	double clip;       /* max_norm of stage s is clip / (s + 1); 0: none */
	const char *fates; /* seed of which activations go to host memory instead of staying on their device; NULL: none */
};

static const int64_t wide[] = {9, 5, 4, 2};
static const struct what cases[] = {
        {.schedule = "1f1b-async", .model = "qwen3", .device = "cpu:4", .stages = 4},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4},
        {.schedule = "paci", .model = "llama2", .device = "cpu:4", .stages = 4, .admission_limit = wide},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:2", .stages = 2, .dtype = RH_BF16},
        {.schedule = "paci", .model = "smollm2", .device = "cpu:4", .stages = 4, .lora_r = 3, .dropout = 0.1},
        {.schedule = "1f1b-async", .model = "qwen3", .device = "cpu:1", .stages = 1},
        {.schedule = "paci", .model = "qwen3-moe", .device = "cpu:4", .stages = 4, .balance = 0.1},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .backward = RH_BACKWARD_STORED},
        {.schedule = "paci", .model = "llama2", .device = "cpu:4", .stages = 4, .admission_limit = wide, .backward = RH_BACKWARD_STORED},
        {.schedule = "1f1b-async", .model = "qwen3", .device = "cpu:3", .stages = 3, .dtype = RH_BF16, .backward = RH_BACKWARD_STORED},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .backward = RH_BACKWARD_STASH},
        {.schedule = "paci", .model = "llama2", .device = "cpu:4", .stages = 4, .admission_limit = wide, .backward = RH_BACKWARD_STASH},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:2", .stages = 2, .dtype = RH_BF16, .backward = RH_BACKWARD_STASH},
        {.schedule = "1f1b-async",
         .model = "smollm2",
         .device = "cpu:4",
         .stages = 4,
         .lora_r = 3,
         .dropout = 0.1,
         .backward = RH_BACKWARD_STASH},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .delay = 1},
        {.schedule = "paci", .model = "llama2", .device = "cpu:4", .stages = 4, .admission_limit = wide, .delay = 2},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:2", .stages = 2, .dtype = RH_BF16, .delay = 1},
        {.schedule = "paci", .model = "llama2", .device = "cpu:3", .stages = 3, .dtype = RH_BF16, .delay = 2},
        {.schedule = "1f1b-async", .model = "smollm2", .device = "cpu:4", .stages = 4, .lora_r = 3, .dropout = 0.1, .delay = 2},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .backward = RH_BACKWARD_STORED, .delay = 1},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .backward = RH_BACKWARD_STORED, .fates = "3"},
        {.schedule = "paci",
         .model = "llama2",
         .device = "cpu:4",
         .stages = 4,
         .admission_limit = wide,
         .backward = RH_BACKWARD_STORED,
         .fates = "4"},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:1", .stages = 1, .delay = 1},
        {.schedule = "paci", .model = "qwen3", .device = "cpu:4", .stages = 4, .clip = 0.2},
        {.schedule = "paci", .model = "llama2", .device = "cpu:3", .stages = 3, .dtype = RH_BF16, .clip = 0.1, .delay = 2},
        {.schedule = "1f1b-async", .model = "smollm2", .device = "cpu:4", .stages = 4, .lora_r = 3, .dropout = 0.1, .clip = 0.05},
};

struct outcome {
	double loss[ALL];   /* sums over a micro-batch's targets */
	int64_t drift[ALL]; /* the most updates that a stage made between a micro-batch's forward and its backward */
	float *weights;     /* of all trained tensors */
	int64_t count;
};

static double rate_of(int64_t step)
{
	return 3e-3 / (double)(1 + step % 3);
}

static struct rh_update update_of(int64_t step)
{
	static const struct rh_optimizer_settings settings = {0.9, 0.999, 1e-8, 0, 0};
	return (struct rh_update){settings, rate_of(step), 1, step + 1, 1};
}

static void start(struct deep *deep, const struct what *what, const char *device, const char *schedule, struct rig_input *in)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	struct rig *rig = &deep->rig;
	deep_open(deep, what->model, BLOCKS);
	rig->config.device = (char *)(uintptr_t)device;
	rig->config.schedule = (char *)(uintptr_t)schedule;
	rig->config.dtype = what->dtype;
	rig->config.state_layout = what->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	rig->config.max_grad_norm = schedule ? what->clip : 0;
	rig->config.mode = RH_MODE_LOCAL;
	rig->config.router_aux_loss_coef = what->balance;
	rig->config.paci_backward = schedule ? what->backward : RH_BACKWARD_RECOMPUTE; /* the plain loop does it by itself */
	rig->config.paci_update_delay = schedule ? what->delay : 0;
	rig->config.use_lora = what->lora_r > 0;
	rig->config.lora_r = what->lora_r;
	rig->config.lora_alpha = 16;
	rig->config.lora_dropout = what->dropout;
	rig->config.lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	*in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(in, 0), .train_micro_batches = MICROS};
	check_ok(rh_session_open(&rig->config, RH_SESSION_TRAINS, &rig->session));
	rig->session.admission_limit = what->admission_limit;
	check_ok(rh_session_start(&rig->session, &work));
}

/* Micro-batch `m` of all; its step's scale is one over the step's targets. */
static void micro_make(const struct rig_input *in, int64_t m, struct rig_micro *out)
{
	rig_micro_make(in, m % in->micros, 0, out);
}

static float scale_of(const struct rig_input *in, int64_t step)
{
	static struct rig_micro micro;
	int64_t trained = 0;
	for (int64_t m = step * MICROS; m < (step + 1) * MICROS; m++) {
		micro_make(in, m, &micro);
		trained += micro.batch.shape.head_rows;
	}
	return 1.0f / (float)trained;
}

static double loss_sum(const float *loss, int64_t rows)
{
	double sum = 0;
	for (int64_t i = 0; i < rows; i++)
		sum += (double)loss[i];
	return sum;
}

/* ---- as it is run ---- */

struct running {
	struct rig *rig;
	const struct rig_input *in;
	struct rig_micro micro[ALL]; /* whatever is in flight */
	struct rh_micro_batch batch[MICROS];
	struct outcome *out;
	int64_t begun, ended;
	double clip;
};

static int64_t *narrowed; /* limits of which the first is lowered when the program is made: what it lets in is more than they allow */

static int begin(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct running *at = context;
	struct rh_update update = update_of(step);
	assert_int_equal(step, at->begun++);
	if (narrowed)
		narrowed[0] = 2;
	double max_norm[STAGES_MOST];
	for (int s = 0; s < STAGES_MOST; s++)
		max_norm[s] = at->clip / (s + 1);
	if (at->clip > 0)
		rh_updater_open_parts(at->rig->session.updater, &update, max_norm);
	else
		rh_updater_open(at->rig->session.updater, &update, 0);
	for (int64_t m = 0; m < MICROS; m++) {
		micro_make(at->in, step * MICROS + m, &at->micro[step * MICROS + m]);
		at->batch[m] = at->micro[step * MICROS + m].batch;
	}
	*batch = at->batch;
	*loss_scale = scale_of(at->in, step);
	return 0;
}

static int end(void *context, int64_t step, const struct rh_versions *versions)
{
	struct running *at = context;
	assert_int_equal(step, at->ended++);
	int64_t layers = at->rig->session.model->layers;
	for (int64_t m = step * MICROS; m < (step + 1) * MICROS; m++) {
		at->out->loss[m] = loss_sum(at->micro[m].loss, at->micro[m].batch.shape.head_rows);
		at->out->drift[m] = rh_versions_drift(versions + (m - step * MICROS) * layers, layers);
	}
	double norm, part[STAGES_MOST] = {0}, squares = 0;
	int rc = rh_updater_norm(at->rig->session.updater, &norm);
	if (!rc && at->clip > 0) {
		rh_updater_part_norms(at->rig->session.updater, part);
		for (int s = 0; s < STAGES_MOST; s++)
			squares += part[s] * part[s];
		check_near(sqrt(squares), norm, 1e-12);
	}
	return rc;
}

static void check_lanes(const struct rh_session *session)
{
	struct rh_check_options options;
	struct rh_check_fault fault;
	struct rh_check *check;
	rh_record_rooms(session->executor, &options);
	check_ok(rh_check_create(&options, &check));
	for (int64_t step = 0; step < STEPS; step++)
		check_ok(rh_check_expect(
		        check, &(struct rh_check_call){.step = step, .micro_batches = MICROS, .version = -1, .trains = 1, .updates = 1}));
	check_ok(rh_check_run(check, rh_record_lanes(session->executor), &fault));
	if (fault.position < 0)
		rh_check_finish(check, &fault);
	if (fault.position >= 0)
		fail_msg("%s", fault.text);
	rh_check_destroy(check);
}

static struct outcome run(const struct what *what)
{
	struct deep deep;
	struct rig_input in;
	struct outcome out = {0};
	assert_int_equal(what->fates ? setenv(RH_HOOK_FATES, what->fates, 1) : unsetenv(RH_HOOK_FATES), 0);
	start(&deep, what, what->device, what->schedule, &in);
	assert_int_equal(unsetenv(RH_HOOK_FATES), 0);
	assert_int_equal(deep.rig.session.plan.stages.saved_bytes > 0, what->fates != NULL);
	if (what->fates)
		rh_record_begin(deep.rig.session.executor);
	struct running *at = calloc(1, sizeof *at);
	assert_non_null(at);
	at->rig = &deep.rig;
	at->in = &in;
	at->out = &out;
	at->clip = what->clip;
	/* two stretches: a flush between them */
	for (int part = 0; part < 2; part++) {
		const struct rh_stretch stretch = {.first_step = part ? STEPS / 4 : 0,
		                                   .steps = part ? STEPS - STEPS / 4 : STEPS / 4,
		                                   .micro_batches = MICROS,
		                                   .begin = begin,
		                                   .end = end,
		                                   .context = at};
		check_ok(rh_executor_train_stretch(deep.rig.session.executor, &stretch));
		check_ok(rh_updater_flush(deep.rig.session.updater));
	}
	assert_int_equal(at->ended, STEPS);
	if (what->fates)
		check_lanes(&deep.rig.session);
	out.weights = rig_weights(&deep.rig.session, &out.count);
	free(at);
	deep_close(&deep);
	return out;
}

/* ---- the plain loop ---- */

struct plain {
	const struct what *what;
	struct rig *rig;
	const struct rig_input *in;
	struct rh_pool *pool;
	struct cpu_context cpu;
	int64_t cut[STAGES_MOST + 1];
	char *activation[STAGES_MOST + 1][ALL], *gradient[STAGES_MOST + 1][ALL]; /* at each stage's lower end */
	char **weights;
	float *(*sum)[2];
	struct rh_stage_state state;
	char **published;                    /* of each block: what stages compute with, where updates are published later; else NULL */
	struct kept *kept[STAGES_MOST][ALL]; /* NULL: nothing is in flight, or nothing is kept */
	int64_t version[STAGES_MOST], of_forward[STAGES_MOST][ALL]; /* of each stage's weights */
	struct outcome *out;
};

/* What a stage keeps of a micro-batch from its forward to its backward: the activations, or the weights. */
struct kept {
	char *memory, **weights;
	struct rh_arena arena;
};

static int launch(void *sink, const struct rh_op *op)
{
	if (rh_op_fault(op))
		fail_msg("%s", rh_op_fault(op));
	return cpu_run(sink, op);
}

/* What a stage computes with: the newest weights, or those that were published last. */
static char *shown(const struct plain *at, int b)
{
	return at->published[b] ? at->published[b] : (char *)(uintptr_t)rh_store_weights(at->rig->session.store, b);
}

static char *hidden_at(char **place, const struct rh_micro_batch *batch, const struct rh_model *model)
{
	if (!*place)
		*place = malloc((size_t)rh_boundary_most_bytes(model, batch->shape.tokens));
	assert_non_null(*place);
	return *place;
}

/* The integers of a micro-batch as ops read them. */
static char *integers(const struct rh_micro_batch *batch)
{
	struct rh_micro_layout at = rh_micro_layout(&batch->shape);
	char *to = calloc(1, (size_t)at.bytes + 1);
	assert_non_null(to);
	memcpy(to + at.ids, batch->ids, (size_t)batch->shape.tokens * 4);
	memcpy(to + at.position, batch->position, (size_t)batch->shape.tokens * 4);
	memcpy(to + at.start_q, batch->start_q, (size_t)(batch->shape.documents + 1) * 4);
	memcpy(to + at.start_k, batch->start_k, (size_t)(batch->shape.documents + 1) * 4);
	memcpy(to + at.head_row, batch->head_row, (size_t)batch->shape.head_rows * 4);
	memcpy(to + at.target, batch->target, (size_t)batch->shape.head_rows * 4);
	return to;
}

static struct kept *keep(const struct plain *at, int stage)
{
	const struct rh_model *model = at->rig->session.model;
	struct kept *kept = calloc(1, sizeof *kept);
	assert_non_null(kept);
	kept->weights = calloc((size_t)model->blocks, sizeof *kept->weights);
	assert_non_null(kept->weights);
	kept->memory = malloc(ACTS);
	assert_non_null(kept->memory);
	kept->arena = (struct rh_arena){.base = (char *)(uintptr_t)rh_align_up((int64_t)(uintptr_t)kept->memory, RH_ALIGN),
	                                .capacity = ACTS - RH_ALIGN};
	for (int l = (int)at->cut[stage]; l < at->cut[stage + 1]; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			size_t bytes = b < 0 ? 0 : (size_t)rh_block_bytes(&model->block[b], model->dtype);
			if (b < 0 || at->what->backward != RH_BACKWARD_STASH)
				continue;
			kept->weights[b] = malloc(bytes);
			assert_non_null(kept->weights[b]);
			memcpy(kept->weights[b], shown(at, b), bytes);
		}
	return kept;
}

static void forget(const struct plain *at, struct kept *kept)
{
	for (int b = 0; b < at->rig->session.model->blocks; b++)
		free(kept->weights[b]);
	free(kept->weights);
	free(kept->memory);
	free(kept);
}

/* One forward or backward of a stage, with the weights that it has now, or those that its forward had. */
static void plain_part(struct plain *at, int backward, int stage, int64_t m)
{
	static struct rig_micro micro;
	static char memory[ACTS];
	static int32_t hit[512];
	static struct rh_fates all[16];
	const struct rh_model *model = at->rig->session.model;
	assert_true(model->layers <= 16);
	for (int l = 0; l < model->layers; l++)
		all[l].kept = ~(uint64_t)0;
	int lo = (int)at->cut[stage], hi = (int)at->cut[stage + 1], top = stage + 1 == at->what->stages;
	if (!backward && top)
		return; /* with its backward */
	if (!backward)
		at->of_forward[stage][m] = at->version[stage];
	else if (!top)
		at->out->drift[m] = rh_max(at->out->drift[m], at->version[stage] - at->of_forward[stage][m]);
	micro_make(at->in, m, &micro);
	struct kept **kept = &at->kept[stage][m];
	if (!backward && at->what->backward != RH_BACKWARD_RECOMPUTE)
		*kept = keep(at, stage);
	int is_stored = *kept && at->what->backward == RH_BACKWARD_STORED;
	for (int b = 0; b < model->blocks; b++)
		at->weights[b] = backward && *kept && (*kept)->weights[b] ? (*kept)->weights[b] : shown(at, b);
	struct rh_arena arena = {.base = (char *)(uintptr_t)rh_align_up((int64_t)(uintptr_t)memory, RH_ALIGN), .capacity = ACTS - RH_ALIGN};
	struct rh_emit emit = {.model = model,
	                       .launch = launch,
	                       .sink = &at->cpu,
	                       .arena = &arena,
	                       .fates = is_stored ? all : NULL,
	                       .kept = is_stored ? &(*kept)->arena : NULL,
	                       .shape = micro.batch.shape,
	                       .micro = integers(&micro.batch),
	                       .step = (uint32_t)(m / MICROS),
	                       .micro_batch = (uint32_t)(m % MICROS),
	                       .seed = at->rig->config.seed,
	                       .dropout = model->dropout,
	                       .loss_scale = scale_of(at->in, m / MICROS),
	                       .micro_batch_share = 1.0f / MICROS,
	                       .weights = at->weights,
	                       .gradient = at->sum};
	int64_t tokens = emit.shape.tokens, hidden = model->config->hidden_size;
	struct rh_view x = {0}, y = {0}, dy = {0}, dx = {0}, boundary[16] = {{0}};
	if (stage)
		x = rh_view_of(at->activation[stage][m], model->dtype, tokens, hidden);
	if (!backward) {
		y = rh_view_of(hidden_at(&at->activation[stage + 1][m], &micro.batch, model), model->dtype, tokens, hidden);
		boundary[hi] = y;
		check_ok(rh_stage_forward(&emit, lo, hi, x, boundary, NULL));
	} else {
		struct rh_head_out head = {.loss = rh_view_of(micro.loss, RH_F32, emit.shape.head_rows, 1),
		                           .hit = rh_view_of(hit, RH_I32, emit.shape.head_rows, 1)};
		if (!top)
			dy = rh_view_of(at->gradient[stage + 1][m], model->dtype, tokens, hidden);
		if (lo > model->first_trained)
			dx = rh_view_of(hidden_at(&at->gradient[stage][m], &micro.batch, model), model->dtype, tokens, hidden);
		if (is_stored)
			rh_arena_reset(&(*kept)->arena, 0);
		if (is_stored)
			rh_stage_place(&emit, lo, hi, x, &at->state);
		else
			check_ok(rh_stage_recompute(&emit, lo, hi, x, &at->state, &head));
		check_ok(rh_stage_backward(&emit, lo, hi, &at->state, dy, dx));
		if (*kept)
			forget(at, *kept);
		*kept = NULL;
		if (top)
			at->out->loss[m] = loss_sum(micro.loss, emit.shape.head_rows);
	}
	free(emit.micro);
}

/* From now on the stage computes with the newest weights. */
static void plain_publish(struct plain *at, int stage)
{
	const struct rh_model *model = at->rig->session.model;
	at->version[stage]++;
	for (int l = (int)at->cut[stage]; at->what->delay && l < at->cut[stage + 1]; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && model->block[b].trainable)
				memcpy(at->published[b], rh_store_weights(at->rig->session.store, b),
				       (size_t)rh_block_bytes(&model->block[b], model->dtype));
		}
}

static int is_of_stage(const struct plain *at, int stage, int b)
{
	const struct rh_model *model = at->rig->session.model;
	for (int l = (int)at->cut[stage]; l < at->cut[stage + 1]; l++)
		if (rh_layer_has_block(&model->layer[l], b))
			return model->block[b].trainable;
	return 0;
}

/* After a step's last backward: the stage's gradients are rounded to where the store has them, its blocks are updated, by the scale that
 * their norm gives where it clips; sums begin anew. */
static void plain_update(struct plain *at, int stage, int64_t step)
{
	const struct rh_model *model = at->rig->session.model;
	struct rh_store *store = at->rig->session.store;
	struct rh_update update = update_of(step);
	double squares = 0;
	for (int b = 0; b < model->blocks; b++) {
		if (!is_of_stage(at, stage, b))
			continue;
		struct rh_op cast = {.kind = RH_OP_CAST};
		cast.operand[RH_CAST_X] = rh_view_of(at->sum[b][0], RH_F32, 1, model->block[b].elements);
		cast.operand[RH_CAST_Y] = rh_view_of(rh_store_gradient(store, b), model->dtype, 1, model->block[b].elements);
		check_ok(cpu_run(&at->cpu, &cast));
		memset(at->sum[b][0], 0, (size_t)model->block[b].elements * 4);
		rh_optimizer_take(store, b);
		squares += rh_optimizer_block_norm(store, b) * rh_optimizer_block_norm(store, b);
	}
	update.scale = rh_optimizer_clip(sqrt(squares), at->what->clip / (stage + 1));
	for (int b = 0; b < model->blocks; b++)
		if (is_of_stage(at, stage, b))
			check_ok(rh_optimizer_update(store, b, &update));
}

/* Who may go first: where each stage is, and when it is free. */
struct clock {
	int64_t forwards[STAGES_MOST], backwards[STAGES_MOST], free_at[STAGES_MOST];
	int64_t forward_end[STAGES_MOST][ALL], backward_end[STAGES_MOST][ALL]; /* INT64_MAX: not yet */
};

static int64_t window_of(const struct what *what, int stage)
{
	return what->admission_limit ? what->admission_limit[stage] : what->stages - stage;
}

/* A forward takes 1, a backward 2. PACI: a backward that has come, else a forward while fewer than the admission limit are unresolved.
 * 1F1B: as many forwards ahead as there are stages above, then in turn. 1: something was begun. */
static int begin_one(struct plain *at, struct clock *clock, int stage, int64_t now, int64_t first, int64_t until)
{
	int stages = at->what->stages, paci = !strcmp(at->what->schedule, "paci");
	int64_t f = clock->forwards[stage], b = clock->backwards[stage], ahead = stages - 1 - stage;
	int input = f < until && (!stage || clock->forward_end[stage - 1][f] <= now);
	int gradient = b < f && clock->forward_end[stage][b] <= now && (stage + 1 == stages || clock->backward_end[stage + 1][b] <= now);
	int forward_turn = f < until && f - b <= ahead;
	if (clock->free_at[stage] > now)
		return 0;
	if (paci ? gradient : gradient && !forward_turn) {
		plain_part(at, 1, stage, b);
		clock->backward_end[stage][b] = clock->free_at[stage] = now + 2;
		clock->backwards[stage]++;
		if ((b + 1) % MICROS == 0)
			plain_update(at, stage, b / MICROS);
		if (b + 1 == until || (b + 1 >= first + MICROS && (b + 1) % MICROS == at->what->delay))
			plain_publish(at, stage);
		return 1;
	}
	if (input && (paci ? f - b < window_of(at->what, stage) : forward_turn)) {
		plain_part(at, 0, stage, f);
		clock->forward_end[stage][f] = clock->free_at[stage] = now + 1;
		clock->forwards[stage]++;
		return 1;
	}
	return 0;
}

static void plain_stretch(struct plain *at, int64_t first, int64_t until)
{
	struct clock *clock = malloc(sizeof *clock);
	assert_non_null(clock);
	for (int s = 0; s < STAGES_MOST; s++) {
		clock->forwards[s] = clock->backwards[s] = first;
		clock->free_at[s] = 0;
		for (int m = 0; m < ALL; m++)
			clock->forward_end[s][m] = clock->backward_end[s][m] = INT64_MAX;
	}
	for (int64_t now = 0; clock->backwards[0] < until; now++)
		for (int s = 0; s < at->what->stages; s++)
			(void)begin_one(at, clock, s, now, first, until);
	free(clock);
}

static struct outcome plain(const struct what *what)
{
	struct deep deep, cut;
	struct rig_input in;
	struct outcome out = {0};
	struct plain *at = calloc(1, sizeof *at);
	assert_non_null(at);
	start(&cut, what, what->device, what->schedule, &in); /* for its stages alone */
	for (int s = 0; s + 1 < what->stages; s++)
		at->cut[s + 1] = cut.rig.session.plan.stages.forward[s].hi;
	at->cut[what->stages] = cut.rig.session.model->layers;
	deep_close(&cut);
	start(&deep, what, "cpu:1", NULL, &in);
	const struct rh_model *model = deep.rig.session.model;
	at->what = what;
	at->rig = &deep.rig;
	at->in = &in;
	at->out = &out;
	check_ok(rh_pool_create(1, &at->pool));
	at->cpu = (struct cpu_context){at->pool, rh_cpu_best_isa()};
	at->weights = calloc((size_t)model->blocks, sizeof *at->weights);
	at->sum = calloc((size_t)model->blocks, sizeof *at->sum);
	at->published = calloc((size_t)model->blocks, sizeof *at->published);
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable) {
			size_t bytes = (size_t)rh_block_bytes(&model->block[b], model->dtype);
			at->sum[b][0] = calloc((size_t)model->block[b].elements, 4);
			at->published[b] = what->delay ? malloc(bytes) : NULL;
			if (what->delay)
				memcpy(at->published[b], rh_store_weights(deep.rig.session.store, b), bytes);
		}
	check_ok(rh_stage_state_create(model, &at->state));
	plain_stretch(at, 0, STEPS / 4 * MICROS);
	plain_stretch(at, STEPS / 4 * MICROS, ALL);
	out.weights = rig_weights(&deep.rig.session, &out.count);
	rh_stage_state_free(&at->state);
	for (int b = 0; b < model->blocks; b++) {
		free(at->sum[b][0]);
		free(at->published[b]);
	}
	for (int s = 0; s <= STAGES_MOST; s++)
		for (int m = 0; m < ALL; m++) {
			free(at->activation[s][m]);
			free(at->gradient[s][m]);
		}
	free(at->published);
	free(at->sum);
	free(at->weights);
	rh_pool_destroy(at->pool);
	deep_close(&deep);
	free(at);
	return out;
}

static void test_stages_that_update_themselves_equal_a_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct outcome got = run(&cases[i]), expected = plain(&cases[i]);
		for (int m = 0; m < ALL; m++)
			if (got.loss[m] != expected.loss[m])
				fail_msg("%s, %s, micro-batch %d of step %d: loss %.9g, expected %.9g", cases[i].schedule, cases[i].model,
				         m % MICROS, m / MICROS, got.loss[m], expected.loss[m]);
		assert_memory_equal(got.drift, expected.drift, sizeof got.drift);
		assert_int_equal(got.count, expected.count);
		assert_memory_equal(got.weights, expected.weights, (size_t)got.count * sizeof(float));
		free(got.weights);
		free(expected.weights);
	}
}

/* Else nothing was compared: a step of one stage is fresh, of four it is not. */
static void test_more_stages_are_staler(void **state)
{
	(void)state;
	struct what one = cases[0], four = cases[0];
	one.device = "cpu:1";
	one.stages = 1;
	struct outcome fresh = plain(&one), stale = plain(&four);
	assert_true(fresh.loss[0] == stale.loss[0] && fresh.loss[MICROS] != stale.loss[MICROS]);
	free(fresh.weights);
	free(stale.weights);
}

/* Else the ways of a backward were not told apart. */
static void test_backwards_differ(void **state)
{
	(void)state;
	struct outcome out[3];
	for (int i = 0; i < 3; i++) {
		struct what what = cases[1];
		what.backward = (enum rh_paci_backward)i;
		out[i] = plain(&what);
	}
	for (int i = 0; i < 3; i++)
		assert_true(memcmp(out[i].weights, out[(i + 1) % 3].weights, (size_t)out[i].count * sizeof(float)));
	for (int i = 0; i < 3; i++)
		free(out[i].weights);
}

/* Else the places of publishing were not told apart. */
static void test_delays_differ(void **state)
{
	(void)state;
	struct outcome out[MICROS];
	for (int e = 0; e < MICROS; e++) {
		struct what what = cases[1];
		what.delay = e;
		out[e] = plain(&what);
	}
	for (int e = 0; e < MICROS; e++)
		assert_true(memcmp(out[e].weights, out[(e + 1) % MICROS].weights, (size_t)out[e].count * sizeof(float)));
	for (int e = 0; e < MICROS; e++)
		free(out[e].weights);
}

/* A window that is wider than the limits in force ends the run. */
static void test_a_wider_window_than_the_limits_is_caught(void **state)
{
	(void)state;
	for (int is_wider = 0; is_wider < 2; is_wider++) {
		pid_t child = fork();
		assert_true(child >= 0);
		if (!child) {
			int64_t limits[] = {3, 3, 2, 1};
			struct what what = cases[1];
			what.admission_limit = limits;
			narrowed = is_wider ? limits : NULL;
			(void)!freopen("/dev/null", "w", stderr);
			struct outcome out = run(&what);
			free(out.weights);
			_exit(0);
		}
		int status;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, is_wider ? SIGABRT : 0);
	}
}

static void test_what_cannot_be_updated_by_stages_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *model, *line;
		size_t limits;
		int staleness, delay;
		enum rh_paci_backward backward;
	} refused[] = {{"qwen3", "optimizer_staleness: schedule paci has a staleness of its own", 0, 1, 0, RH_BACKWARD_RECOMPUTE},
	               {"qwen3", "paci_update_delay: 2, but a step has 2 units", 0, 0, 2, RH_BACKWARD_RECOMPUTE},
	               {"qwen3", "leave paci_backward out, or write paci_update_delay: 0", 0, 0, 1, RH_BACKWARD_STASH},
	               {"qwen3", "admission_limits: 3 limits for 2 devices; each has one", 3, 0, 0, RH_BACKWARD_RECOMPUTE},
	               {"qwen3",
	                "max_version_drift: 2, but with 9 micro-batches in flight on the first device and an update each 2 it may be "
	                "4; write gradient_accumulation_steps: 4",
	                2, 0, 0, RH_BACKWARD_RECOMPUTE}};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct rig rig;
		rig_open(&rig, refused[i].model, NULL);
		rig.config.schedule = (char *)(uintptr_t) "paci";
		rig.config.device = (char *)(uintptr_t) "cpu:2";
		static char *limits[] = {(char *)(uintptr_t) "9", (char *)(uintptr_t) "2", (char *)(uintptr_t) "1"};
		rig.config.admission_limits = (struct rh_list){.item = limits, .count = refused[i].limits};
		rig.config.max_version_drift = refused[i].limits == 2 ? 2 : 0;
		rig.config.optimizer_staleness = refused[i].staleness;
		rig.config.paci_update_delay = refused[i].delay;
		rig.config.paci_backward = refused[i].backward;
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
		check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
		int rc = rh_session_start(&rig.session, &work);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), refused[i].line))
			fail_msg("'%s' is not in: %s", refused[i].line, rh_error(rc));
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_stages_that_update_themselves_equal_a_plain_loop),
	        cmocka_unit_test(test_more_stages_are_staler),
	        cmocka_unit_test(test_backwards_differ),
	        cmocka_unit_test(test_delays_differ),
	        cmocka_unit_test(test_a_wider_window_than_the_limits_is_caught),
	        cmocka_unit_test(test_what_cannot_be_updated_by_stages_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
