/* Adapters trained on a base whose weights stay packed, or are made plain as they are loaded. */
#ifndef RH_TESTS_TRAIN_PACKED_H
#define RH_TESTS_TRAIN_PACKED_H

#include "train/rig.h"

#include "ckpt/merge.h"

enum { PACKED_STEPS = 2, PACKED_MICROS = 4, PACKED_DOCUMENTS = 2, PACKED_LENGTH = 9, PACKED_TOKENS = PACKED_DOCUMENTS * PACKED_LENGTH };

struct packed_case {
	const char *file, *device;
	enum rh_dtype dtype;
	int is_plain;       /* made plain as it is loaded */
	int64_t round, cap; /* round_micro_batches, max_vram; 0: not given */
	char *nvme;         /* a directory: weights lie there; NULL: in memory */
};

/* The rows of all micro-batches are alike, so that the largest is really met. */
static inline struct rig_input packed_input(int64_t vocabulary)
{
	static int32_t ids[PACKED_MICROS * PACKED_TOKENS], mask[PACKED_MICROS * PACKED_TOKENS], start[PACKED_MICROS * PACKED_DOCUMENTS + 1],
	        micro[PACKED_MICROS + 1];
	for (int i = 0; i < PACKED_MICROS * PACKED_TOKENS; i++) {
		ids[i] = (int32_t)((7 * i + i * i / 3) % vocabulary);
		mask[i] = 1;
	}
	for (int d = 0; d <= PACKED_MICROS * PACKED_DOCUMENTS; d++)
		start[d] = d * PACKED_LENGTH;
	for (int m = 0; m <= PACKED_MICROS; m++)
		micro[m] = m * PACKED_DOCUMENTS;
	return (struct rig_input){.ids = ids, .mask = mask, .start = start, .micro = micro, .micros = PACKED_MICROS};
}

static inline enum rh_form packed_never(const void *context, const struct rh_tensor *tensor)
{
	(void)context;
	(void)tensor;
	return RH_FORM_PLAIN;
}

/* A session of it is started; 0, or RH_DOES_NOT_FIT. */
static inline int packed_open(struct rig *rig, const struct packed_case *is, struct rig_input *in)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	rig_open(rig, "llama2", NULL);
	struct rh_config *config = &rig->config;
	config->model_name_or_path = (char *)(uintptr_t)is->file;
	config->device = (char *)(uintptr_t)is->device;
	config->dtype = is->dtype;
	config->state_layout = is->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	config->use_lora = 1;
	config->lora_r = 4;
	config->lora_alpha = 8;
	config->lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	config->round_micro_batches = is->round;
	config->max_vram = is->cap;
	if (is->nvme) {
		config->spill = RH_SPILL_WEIGHTS;
		config->nvme_dirs = (struct rh_list){.item = (char **)(uintptr_t)&is->nvme, .count = 1};
		config->max_nvme = (int64_t)1 << 40;
	}
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, &rig->session));
	if (is->is_plain)
		rh_model_pack(rig->session.model, packed_never, NULL);
	*in = packed_input(rig->session.model_config->vocab_size);
	struct rh_workload work = {.train = rig_limits(in, 0), .train_micro_batches = PACKED_MICROS};
	return rh_session_start(&rig->session, &work);
}

static inline void packed_train(struct rig *rig, const struct rig_input *in, double loss[PACKED_STEPS])
{
	for (int step = 0; step < PACKED_STEPS; step++) {
		loss[step] = rig_step(rig, in, 0, PACKED_MICROS, step);
		(void)rig_update(rig, 1e-2, step);
	}
}

/* A copy of a reference model, all of whose matrices are in Q8_0: at `path`. */
static inline void packed_export(const char *path)
{
	int64_t tensors;
	check_ok(rh_merge(&(struct rh_merge){.model = "tests/reference/models/gguf-llama/model.gguf", .gguf = path, .dtype = RH_Q8_0},
	                  &tensors));
}

#endif
