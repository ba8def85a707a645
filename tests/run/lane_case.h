/* Runs of random configurations in virtual time, on lanes: small models of all that the lanes' order depends on. */
#ifndef RH_TESTS_RUN_LANE_CASE_H
#define RH_TESTS_RUN_LANE_CASE_H

#include "train/deep.h"

#include "config/hardware.h"
#include "core/hooks.h"
#include "run/check.h"
#include "run/executor.h"
#include "run/lane_box.h"
#include "session/chunks.h"
#include "session/run_state.h"
#include "session/update.h"

enum { LANE_STEPS = 3, LANE_MOST_MICROS = 64, LANE_TOKENS = 32 };

struct lane_random {
	uint64_t state;
};

static inline int64_t lane_pick(struct lane_random *random, int64_t count)
{
	random->state = random->state * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((random->state >> 33) % (uint64_t)count);
}

struct lane_case {
	const char *model, *schedule;
	int layers, devices, lora, bf16, stale, clips, tied, evaluates, generates, packed;
	int spill;         /* bits of enum rh_spill */
	int64_t cap_bytes; /* of a device; 0: all of it */
	int room;          /* eighths of the memory that boundaries take, where they go to NVMe */
	int64_t micro_batches, last_micro_batches, round;
	int64_t forward_cut[16], backward_cut[16];
	int forward_cuts, backward_cuts; /* -1: chosen */
	int boxes, box;                  /* which of how many, from 1; 0: this is no box among several */
	int64_t delay;                   /* paci_update_delay */
	int fates;                       /* the seed of activations' fates, 0: the plan's own */
	int is_eight;                    /* products of 8-bit operands: weights are prepared once a slot */
	int chunks;                      /* places of each text's chunks, which are the step's micro-batches; 0: texts are whole */
	int narrow;                      /* saved_dtype: fp8 */
	uint64_t seed;
};

static inline void lane_case_print(const struct lane_case *is)
{
	printf("seed %llu: %s of %d layers%s%s, %s, %d devices, %s%s%s, %d micro-batches, %d in the last step, rounds of %d, cuts %d and "
	       "%d%s%s%s%s, spill %d, cap %lld, box %d of %d, delay %d, fates %d, chunks %d%s\n",
	       (unsigned long long)is->seed, is->model, is->layers, is->lora ? ", LoRA" : "", is->tied ? ", tied" : "",
	       is->bf16 ? "bf16" : "fp32", is->devices, is->schedule, is->stale ? ", stale" : "", is->clips ? ", clips" : "",
	       (int)is->micro_batches, (int)is->last_micro_batches, (int)is->round, is->forward_cuts, is->backward_cuts,
	       is->evaluates ? ", evaluates" : "", is->generates ? ", generates" : "", is->packed ? ", packed" : "",
	       is->is_eight ? ", 8-bit" : "", is->spill, (long long)is->cap_bytes, is->box, is->boxes, (int)is->delay, is->fates,
	       is->chunks, is->narrow ? ", saves in 8 bits" : "");
}

/* Ascending layers in [1, layers), each with one chance in two. */
static inline int lane_cuts(struct lane_random *random, int layers, int64_t *cut)
{
	int cuts = 0;
	for (int l = 1; l < layers && cuts < 16; l++)
		if (lane_pick(random, 2))
			cut[cuts++] = l;
	return cuts;
}

/* Mixtures of experts and layers that differ, caps, what goes to NVMe, and sessions that generate. */
static inline void lane_case_tiers(struct lane_random *random, struct lane_case *is)
{
	static const char *const others[] = {"qwen3-moe", "gpt-oss", "gemma3", "mistral", "phi3", "qwen3.5"};
	if (!lane_pick(random, 6)) {
		is->model = others[lane_pick(random, 6)];
		is->tied = !strcmp(is->model, "gemma3");
	}
	if (!lane_pick(random, 3))
		is->cap_bytes = (int64_t)64 << (10 + lane_pick(random, 7));
	if (!lane_pick(random, 3))
		is->spill |= RH_SPILL_ACTIVATIONS;
	if (is->lora && lane_pick(random, 2))
		is->spill |= RH_SPILL_WEIGHTS;
	is->room = (int)lane_pick(random, 8);
	is->generates = !lane_pick(random, 10) && is->cap_bytes == 0 && !(is->spill & RH_SPILL_ACTIVATIONS);
}

/* One box among several: whole units of the schedule go over links. RoundPipe is mode fluidpipe's. */
static inline int lane_is_fluid(const struct lane_case *is)
{
	return !strcmp(is->schedule, "roundpipe");
}

static inline int lane_is_local(const struct lane_case *is)
{
	return !strcmp(is->schedule, "paci") || !strcmp(is->schedule, "1f1b-async");
}

static inline void lane_case_boxes(struct lane_random *random, struct lane_case *is)
{
	static const char *const schedules[] = {"roundpipe", "gpipe", "1f1b", "paci", "1f1b-async", "zb-h1", "zb-h2", "zb-1p", "zb-2p"};
	if (lane_pick(random, 5) || is->generates)
		return;
	is->schedule = schedules[lane_pick(random, 9)];
	if (is->tied && !is->lora && lane_is_local(is)) /* such boxes make two of a tied table */
		is->schedule = "1f1b";
	is->boxes = lane_is_fluid(is) ? 2 : 2 + (int)lane_pick(random, is->layers > 1 ? 3 : 2); /* each has a layer */
	is->box = 1 + (int)lane_pick(random, is->boxes);
	is->round = lane_pick(random, 2) ? 0 : 1 + lane_pick(random, is->micro_batches);
	is->forward_cuts = is->backward_cuts = -1;
	is->stale = is->evaluates = 0;
	is->spill &= ~RH_SPILL_ACTIVATIONS; /* which the configuration refuses */
}

static inline struct lane_case lane_case_random(uint64_t seed, int64_t most_micros)
{
	static const char *const models[] = {"qwen3", "qwen2", "llama2", "llama3", "smollm2", "llama-bias"};
	static const char *const schedules[] = {"roundpipe",  "roundpipe", "roundpipe", "roundpipe", "gpipe", "1f1b",  "interleaved-1f1b",
	                                        "looped-bfs", "mobius",    "zb-h1",     "zb-h2",     "zb-1p", "zb-2p", "zb-v",
	                                        "1f1b-async", "paci"};
	struct lane_random random = {seed * 2654435761u + 1};
	struct lane_case is = {.seed = seed};
	(void)lane_pick(&random, 2);
	is.model = models[lane_pick(&random, 6)];
	is.schedule = schedules[lane_pick(&random, 16)];
	is.layers = 1 + (int)lane_pick(&random, 8);
	is.devices = 1 + (int)lane_pick(&random, 8);
	is.lora = !lane_pick(&random, 3);
	is.bf16 = lane_pick(&random, 3) > 0;
	is.clips = (int)lane_pick(&random, 2);
	is.micro_batches = 1 + lane_pick(&random, lane_pick(&random, 2) ? most_micros : 8);
	is.last_micro_batches = lane_pick(&random, 2) ? is.micro_batches : 1 + lane_pick(&random, is.micro_batches);
	is.forward_cuts = is.backward_cuts = -1;
	if (!strcmp(is.schedule, "roundpipe")) {
		is.round = lane_pick(&random, 2) ? 0 : 1 + lane_pick(&random, is.micro_batches);
		is.stale = (int)lane_pick(&random, 2);
		if (lane_pick(&random, 2)) {
			int fused = 1 + (int)lane_pick(&random, is.layers + 1);
			is.backward_cuts = lane_cuts(&random, is.layers + 2, is.backward_cut);
			if (is.backward_cuts)
				fused = (int)is.backward_cut[is.backward_cuts - 1];
			is.forward_cuts = is.backward_cuts ? lane_cuts(&random, fused, is.forward_cut) : -1;
			is.backward_cuts = is.backward_cuts ? is.backward_cuts : -1;
		}
	}
	is.tied = !strcmp(is.model, "qwen2") || !strcmp(is.model, "smollm2");
	is.evaluates = !lane_pick(&random, 4);
	lane_case_tiers(&random, &is);
	lane_case_boxes(&random, &is);
	int64_t unit = !is.boxes ? 1 : is.round ? is.round : is.devices;
	if (lane_is_local(&is)) /* fewer than the units of a step */
		is.delay = lane_pick(&random, (is.micro_batches + unit - 1) / unit);
	is.packed = (is.lora || is.generates) && lane_pick(&random, 2);
	if (!strcmp(is.schedule, "roundpipe") && !is.boxes && !is.generates && !lane_pick(&random, 4)) {
		is.fates = 1 + (int)lane_pick(&random, 1000);
		is.devices = seed % 2 ? 1 : is.devices; /* of several none keeps activations, but may save them */
		is.backward_cuts = lane_cuts(&random, is.layers + 2, is.backward_cut);
		int fused = is.backward_cuts > 0 ? (int)is.backward_cut[is.backward_cuts - 1] : 1;
		is.forward_cuts = is.devices > 1 && fused > 1 ? lane_cuts(&random, fused, is.forward_cut) : -1;
	} else if (!strcmp(is.schedule, "roundpipe") && !is.boxes && !is.generates && is.forward_cuts < 0 && is.backward_cuts < 0 &&
	           lane_pick(&random, 2)) {
		is.chunks = 2 + (int)lane_pick(&random, 3);
		is.micro_batches = is.micro_batches > LANE_MOST_MICROS / is.chunks ? LANE_MOST_MICROS / is.chunks : is.micro_batches;
		is.last_micro_batches = is.last_micro_batches > is.micro_batches ? is.micro_batches : is.last_micro_batches;
		is.round = is.round > is.micro_batches ? is.micro_batches : is.round;
	}
	is.is_eight = is.bf16 && !lane_pick(&random, 3);
	is.narrow = !strcmp(is.schedule, "roundpipe") && !is.boxes && !is.generates && !is.fates && is.forward_cuts < 0 &&
	            is.backward_cuts < 0 && seed % 3 == 0;
	if (is.chunks && is.devices == 1 && !is.narrow && seed % 2)
		is.fates = 1 + (int)(seed % 1000);
	return is;
}

/* A session of it, recorded. */
struct lane_run {
	const struct lane_case *is;
	struct deep deep;
	struct rh_session session;
	struct rh_session_machine machine;
	struct rh_hardware hardware;
	struct lane_neighbours neighbours;
	struct rh_check_call call[4 * LANE_STEPS];
	int calls;
	int32_t zeros[LANE_TOKENS + 1];
	struct rh_micro_batch micro[LANE_MOST_MICROS];
};

static inline void lane_expect(struct lane_run *run, struct rh_check_call call)
{
	run->call[run->calls++] = call;
}

static inline int64_t lane_count(const struct lane_run *run, int64_t step)
{
	int64_t texts = step == LANE_STEPS - 1 ? run->is->last_micro_batches : run->is->micro_batches;
	return run->is->chunks ? texts * run->is->chunks : texts;
}

/* Micro-batches differ in length. */
static inline void lane_fill(struct lane_run *run, int64_t count, int64_t step)
{
	for (int64_t m = 0; m < count; m++) {
		int64_t tokens = 4 + (7 * m + 3 * step) % (LANE_TOKENS - 3);
		struct rh_micro_shape shape = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = tokens - 1};
		run->micro[m] = rh_micro_batch_of(shape, run->zeros);
	}
}

/* Texts of one to all of their chunks, which differ in length. */
static inline void lane_fill_chunks(struct lane_run *run, int64_t count, int64_t step)
{
	for (int64_t m = 0, each = run->is->chunks; m < count; m++) {
		int chunk = (int)(m % each), chunks = 1 + (int)((m / each + step) % each);
		int64_t first = chunk ? run->micro[m - 1].shape.first + run->micro[m - 1].shape.tokens : 0,
		        tokens = chunk < chunks ? 4 + (7 * m + 3 * step) % (LANE_TOKENS - 3) : 0;
		struct rh_micro_shape shape = {.tokens = tokens,
		                               .documents = tokens > 0,
		                               .longest = tokens,
		                               .head_rows = tokens ? tokens - 1 : 0,
		                               .keys = chunks > 1 && tokens ? first + tokens : 0,
		                               .first = first,
		                               .text_longest = LANE_TOKENS * each,
		                               .chunk = chunk,
		                               .chunks = chunks};
		run->micro[m] = rh_micro_batch_of(shape, run->zeros);
	}
}

static inline struct rh_micro_shape lane_limits(void)
{
	return (struct rh_micro_shape){.tokens = LANE_TOKENS, .documents = 1, .longest = LANE_TOKENS, .head_rows = LANE_TOKENS};
}

static inline void lane_configure(struct lane_run *run)
{
	const struct lane_case *is = run->is;
	struct rh_config *config = &run->deep.rig.config;
	config->dtype = is->bf16 ? RH_BF16 : RH_F32;
	config->state_layout = is->bf16 ? RH_LAYOUT_SPLIT : RH_LAYOUT_PLAIN;
	config->schedule = (char *)(uintptr_t)is->schedule;
	config->optimizer_staleness = is->stale;
	config->saved_dtype = is->narrow ? RH_SAVED_FP8 : RH_SAVED_SAME;
	config->paci_update_delay = is->delay;
	config->max_grad_norm = is->clips;
	config->round_micro_batches = is->round;
	config->per_device_train_batch_size = 1;
	config->max_length = LANE_TOKENS;
	config->gradient_accumulation_steps = is->micro_batches;
	config->max_vram = is->cap_bytes;
	config->spill = is->spill;
	config->max_nvme = is->spill ? (int64_t)1 << 40 : 0;
	if (is->boxes) {
		config->mode = lane_is_fluid(is) ? RH_MODE_FLUIDPIPE : lane_is_local(is) ? RH_MODE_PACI : RH_MODE_SYNC_PP;
		config->boxes = is->boxes;
		config->box = is->box;
		config->fluidpipe_ahead = 2;
		config->tie_word_embeddings = config->mode == RH_MODE_SYNC_PP && is->tied && !is->lora;
	}
	if (is->lora) {
		static char *targets[] = {(char *)(uintptr_t) "all-linear"};
		config->use_lora = 1;
		config->lora_target_modules = (struct rh_list){targets, 1, 1};
		config->lora_r = 4;
		config->lora_alpha = 8;
	}
	if (is->forward_cuts >= 0) {
		config->forward_cuts = (int64_t *)(uintptr_t)is->forward_cut;
		config->forward_cut_count = is->forward_cuts;
	}
	if (is->backward_cuts >= 0) {
		config->backward_cuts = (int64_t *)(uintptr_t)is->backward_cut;
		config->backward_cut_count = is->backward_cuts;
	}
}

static inline struct rh_workload lane_workload(const struct lane_case *is)
{
	struct rh_workload work = {.train = lane_limits(),
	                           .infer = is->evaluates ? lane_limits() : (struct rh_micro_shape){0},
	                           .train_micro_batches = is->micro_batches,
	                           .infer_micro_batches = is->evaluates ? is->micro_batches : 0};
	if (is->chunks) {
		work.chunks = work.train.chunks = is->chunks;
		work.cache_rows = work.train.keys = work.train.text_longest = is->chunks * LANE_TOKENS;
		work.train_micro_batches *= is->chunks;
	}
	if (is->generates) {
		work = (struct rh_workload){.infer = lane_limits(), .infer_micro_batches = 1, .infer_logits = 1, .cache_rows = LANE_TOKENS};
		work.infer.head_rows = 1;
		work.infer.keys = LANE_TOKENS;
	}
	return work;
}

/* Any form that the matrix's rows can have; where products are in 8 bits, half of what may feeds them. */
static inline enum rh_form lane_form(const void *context, const struct rh_tensor *tensor)
{
	const struct lane_case *is = context;
	struct lane_random random = {is->seed + (uint64_t)tensor->offset};
	enum rh_form form = (enum rh_form)lane_pick(&random, RH_FORM_FP8_JOINT);
	if (tensor->may_feed && lane_pick(&random, 2))
		return RH_FORM_FP8_JOINT;
	return form && tensor->cols % rh_dtype_block(rh_form_traits(form)->element) == 0 ? form : RH_FORM_PLAIN;
}

/* Do all mixers carry what a chunk leaves to the next? */
static inline int lane_check_chunks(const struct lane_run *run)
{
	struct rh_config config = run->deep.rig.config;
	config.sequence_chunk = run->is->chunks ? LANE_TOKENS : 0;
	return rh_chunks_check(&config, run->session.model);
}

static inline int lane_session_open(struct lane_run *run, int64_t most_ram)
{
	const struct rh_workload work = lane_workload(run->is);
	run->deep.rig.config.max_ram = most_ram;
	int rc = setenv(RH_HOOK_TABLE_ROWS, run->is->seed % 2 ? "1" : "0", 1);
	assert_int_equal(rc, 0);
	rc = rh_session_simulate(&run->deep.rig.config, &run->machine, &run->session);
	if (!rc)
		rc = lane_check_chunks(run);
	if (!rc && run->is->boxes)
		rc = lane_box_join(&run->session, &run->neighbours);
	if (!rc && run->is->is_eight)
		run->session.model->multiply = RH_MULTIPLY_F8;
	if (!rc && run->is->packed)
		rh_model_pack(run->session.model, lane_form, run->is);
	if (!rc && run->is->is_eight)
		rh_model_scale(run->session.model);
	return rc ? rc : rh_session_start(&run->session, &work);
}

/* Less memory, so that activations go to NVMe. */
static inline int lane_session_squeeze(struct lane_run *run)
{
	int64_t total = run->session.plan.bytes.total, boundaries = run->session.plan.bytes.boundaries;
	int rc = -ENOMEM;
	for (int room = run->is->room; rc && room <= 8; room++) {
		rh_error_clear();
		rh_session_close(&run->session);
		rc = lane_session_open(run, room < 8 ? total - boundaries * (8 - room) / 8 : 0);
	}
	return rc;
}

/* 0; or what says that there is no such run. */
static inline int lane_run_open(struct lane_run *run, const struct lane_case *is)
{
	*run = (struct lane_run){.is = is};
	deep_open(&run->deep, is->model, is->layers);
	check_ok(rh_hardware_find("examples/hardware/rtx4090x8.yaml", &run->hardware));
	run->machine = (struct rh_session_machine){.hardware = &run->hardware, .devices = is->devices, .ram_bytes = run->hardware.host.ram};
	lane_configure(run);
	char fates[16];
	snprintf(fates, sizeof fates, "%d", is->fates);
	assert_int_equal(is->fates ? setenv(RH_HOOK_FATES, fates, 1) : unsetenv(RH_HOOK_FATES), 0);
	int rc = lane_session_open(run, 0);
	if (!rc && is->spill & RH_SPILL_ACTIVATIONS && run->session.plan.bytes.boundaries)
		rc = lane_session_squeeze(run);
	if (!rc)
		rh_record_begin(run->session.executor);
	return rc;
}

static inline void lane_run_close(struct lane_run *run)
{
	rh_session_close(&run->session);
	rh_hardware_free(&run->hardware);
	deep_close(&run->deep);
}

static inline void lane_infer(struct lane_run *run, int64_t version)
{
	int64_t call = 0;
	if (!run->is->evaluates)
		return;
	for (int i = 0; i < run->calls; i++)
		call -= !run->call[i].trains;
	lane_fill(run, run->is->last_micro_batches, 0);
	lane_expect(run, (struct rh_check_call){.step = call - 1, .micro_batches = run->is->last_micro_batches, .version = version});
	check_ok(rh_executor_infer(run->session.executor, run->micro, run->is->last_micro_batches));
}

static inline void lane_begin(struct lane_run *run, int64_t step)
{
	const struct rh_config *config = &run->deep.rig.config;
	struct rh_update update = rh_update_of(config, step, 1e-3, 1);
	int64_t count = lane_count(run, step), version = step - run->is->stale;
	rh_updater_open(run->session.updater, &update, config->max_grad_norm);
	if (run->is->chunks)
		lane_fill_chunks(run, count, step);
	else
		lane_fill(run, count, step);
	lane_expect(run, (struct rh_check_call){.step = step,
	                                        .micro_batches = count,
	                                        .version = version < 0 ? 0 : version,
	                                        .trains = 1,
	                                        .updates = 1,
	                                        .clips = run->is->clips});
	check_ok(rh_executor_begin(run->session.executor, run->micro, count, step, 1));
}

static inline void lane_train(struct lane_run *run)
{
	int64_t begun = 0, most = rh_executor_steps_in_flight(run->session.executor);
	double norm;
	int shared = rh_model_shared_block(run->session.model);
	for (int64_t step = 0; step < LANE_STEPS; step++) {
		for (; begun < LANE_STEPS && begun < step + most; begun++)
			lane_begin(run, begun);
		check_ok(rh_executor_finish(run->session.executor));
		if (shared >= 0) /* the other end's sum is zero */
			rh_updater_completes(run->session.updater, shared);
		if (run->is->boxes && !lane_is_fluid(run->is))
			check_ok(lane_box_norm(run->session.updater));
		check_ok(rh_updater_norm(run->session.updater, &norm));
	}
	check_ok(rh_updater_flush(run->session.updater));
	if (run->is->stale)
		check_ok(rh_record_flushed(run->session.executor, LANE_STEPS - 1));
	lane_infer(run, LANE_STEPS);
}

/* Local updates. */
static inline int lane_stretch_begin(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct lane_run *run = context;
	lane_fill(run, run->is->micro_batches, step);
	lane_expect(run, (struct rh_check_call){
	                         .step = step, .micro_batches = run->is->micro_batches, .version = -1, .trains = 1, .updates = 1});
	struct rh_update update = rh_update_of(&run->deep.rig.config, step, 1e-3, 1);
	double max_norm[RH_SHARING_DEVICES];
	for (int d = 0; d < RH_SHARING_DEVICES; d++)
		max_norm[d] = 1;
	if (rh_session_clipping_devices(&run->session))
		rh_updater_open_parts(run->session.updater, &update, max_norm);
	else
		rh_updater_open(run->session.updater, &update, 0);
	*batch = run->micro;
	*loss_scale = 1;
	return 0;
}

static inline int lane_stretch_end(void *context, int64_t step, const struct rh_versions *versions)
{
	struct lane_run *run = context;
	double norm;
	(void)step;
	(void)versions;
	return rh_updater_norm(run->session.updater, &norm);
}

/* A prompt, then token after token. */
static inline void lane_generate(struct lane_run *run)
{
	int64_t keys = 0;
	for (int call = 0; call < 2 * LANE_STEPS; call++) {
		int64_t tokens = call ? 1 : LANE_TOKENS / 2;
		keys += tokens;
		const struct rh_micro_shape shape = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = 1, .keys = keys};
		run->micro[0] = rh_micro_batch_of(shape, run->zeros);
		lane_expect(run, (struct rh_check_call){.step = -1 - call, .micro_batches = 1});
		check_ok(rh_executor_infer(run->session.executor, run->micro, 1));
	}
}

static inline void lane_run_steps(struct lane_run *run)
{
	const struct rh_stretch stretch = {.steps = LANE_STEPS,
	                                   .micro_batches = run->is->micro_batches,
	                                   .begin = lane_stretch_begin,
	                                   .end = lane_stretch_end,
	                                   .context = run};
	if (run->is->generates) {
		lane_generate(run);
		return;
	}
	lane_infer(run, 0);
	if (run->session.plan.executor.schedule->update == RH_UPDATE_LOCAL)
		check_ok(rh_executor_train_stretch(run->session.executor, &stretch));
	else
		lane_train(run);
}

/* What the checker says of these lanes, which are the run's or like them. */
static inline struct rh_check_fault lane_check(const struct lane_run *run, const struct rh_lanes *lanes)
{
	struct rh_check_options options;
	struct rh_check_fault fault;
	struct rh_check *check;
	rh_record_rooms(run->session.executor, &options);
	check_ok(rh_check_create(&options, &check));
	for (int i = 0; i < run->calls; i++)
		check_ok(rh_check_expect(check, &run->call[i]));
	check_ok(rh_check_run(check, lanes, &fault));
	if (fault.position < 0)
		rh_check_finish(check, &fault);
	rh_check_destroy(check);
	return fault;
}

#endif
