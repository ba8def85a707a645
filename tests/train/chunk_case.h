/* A run of rows in chunks, or of whole rows, on any device. */
#ifndef RH_TESTS_TRAIN_CHUNK_CASE_H
#define RH_TESTS_TRAIN_CHUNK_CASE_H

#include "offload/drives.h"
#include "rig.h"

#include "core/hooks.h"
#include "session/chunks.h"

#include <stdlib.h>

enum { STEPS = 2, ROWS = 4, CHUNK = 256, TOKENS = 1400, MOST_CHUNKS = 12 };

/* Rows of documents of these lengths: one that is cut many times between two that are not, one whole, cuts between documents, and one of a
 * chunk alone. */
static const int32_t row_documents[ROWS][4] = {{70, 5 * RH_ATTENTION_TILE + 33, 20, 300}, {900}, {70, 340, 230, 400}, {200}};
/* The same in short, for slow devices. */
enum { FEW_ROWS = 2 };
static const int32_t few_documents[FEW_ROWS][4] = {{70, 230}, {100}};

struct what {
	const char *model, *adapter;
	enum rh_dtype dtype;
	double dropout, noise;
	enum rh_saved_dtype saved;
};

struct way {
	const char *device;
	int64_t round, cap, ram;     /* rows in a round, 0: chosen; bytes of a device, 0: all there are; of host memory, likewise */
	int stale, drives, is_short; /* drives: on which activations lie */
	int is_brief;                /* few rows */
	const char *fates;           /* of activations, row by row at random: the hook's seed; NULL: the plan's own */
};

struct outcome {
	double loss[STEPS], norm[STEPS];
	uint64_t weights;
	int stages, chunks;
	int64_t ram, device_bytes, device_peak, nvme_bytes, kept, saved;
};

/* A row, as data/batch.c makes one. */
struct row {
	struct rh_micro_batch batch;
	int32_t ids[TOKENS], position[TOKENS], start[5], head_row[TOKENS], target[TOKENS];
	int32_t start_q[MOST_CHUNKS][6], start_k[MOST_CHUNKS][6], own_head[MOST_CHUNKS][TOKENS];
};

static inline void row_make(const int32_t *length, int64_t vocabulary, uint64_t *seed, struct row *out)
{
	struct rh_micro_shape shape = {0};
	for (int d = 0; d < 4 && length[d]; d++) {
		out->start[d] = (int32_t)shape.tokens;
		for (int32_t i = 0; i < length[d]; i++, shape.tokens++) {
			out->ids[shape.tokens] = (int32_t)(check_random(seed) % (uint32_t)vocabulary);
			out->position[shape.tokens] = i;
			int is_prompt = length[d] == 900 && i < 400; /* chunks without a target */
			if (!i || is_prompt || check_random(seed) % 5 == 0)
				continue;
			out->head_row[shape.head_rows] = (int32_t)shape.tokens - 1;
			out->target[shape.head_rows++] = out->ids[shape.tokens];
		}
		shape.longest = length[d] > shape.longest ? length[d] : shape.longest;
		out->start[++shape.documents] = (int32_t)shape.tokens;
	}
	assert_true(shape.tokens <= TOKENS);
	out->batch = (struct rh_micro_batch){.shape = shape,
	                                     .ids = out->ids,
	                                     .position = out->position,
	                                     .start_q = out->start,
	                                     .start_k = out->start,
	                                     .head_row = out->head_row,
	                                     .target = out->target};
}

static inline void widen(struct rh_micro_shape *most, const struct rh_micro_shape *shape)
{
	int64_t *const a[] = {&most->tokens, &most->documents, &most->longest,     &most->head_rows,
	                      &most->keys,   &most->first,     &most->text_longest};
	const int64_t b[] = {shape->tokens, shape->documents, shape->longest,     shape->head_rows,
	                     shape->keys,   shape->first,     shape->text_longest};
	for (int i = 0; i < 7; i++)
		*a[i] = b[i] > *a[i] ? b[i] : *a[i];
	most->chunks = shape->chunks > most->chunks ? shape->chunks : most->chunks;
}

/* The step's micro-batches: rows, or their chunks in so many places each. */
static inline int cut_rows(const struct rh_chunk_rule *rule, struct row *row, int rows, struct rh_micro_batch *out,
                           struct rh_micro_shape *most, struct rh_chunk_classes *classes)
{
	int64_t tokens[MOST_CHUNKS] = {0};
	int64_t cut[ROWS][RH_CHUNKS_MOST + 1], chunks[ROWS];
	int each = 0;
	for (int r = 0; r < rows; r++) {
		chunks[r] = rh_chunks_cut(rule, row[r].batch.start_q, row[r].batch.shape.documents, cut[r]);
		assert_in_range(chunks[r], 1, MOST_CHUNKS);
		each = (int)chunks[r] > each ? (int)chunks[r] : each;
	}
	*most = (struct rh_micro_shape){0};
	for (int r = 0; r < rows; r++)
		for (int c = 0; c < each; c++) {
			struct rh_chunk_room room = {row[r].start_q[c], row[r].start_k[c], row[r].own_head[c]};
			out[r * each + c] = rh_chunk_of(&row[r].batch, cut[r], c, (int)chunks[r], &room);
			widen(most, &out[r * each + c].shape);
			if (out[r * each + c].shape.tokens > tokens[c])
				tokens[c] = out[r * each + c].shape.tokens;
		}
	rh_chunks_classify(tokens, each, classes);
	return each;
}

static inline struct outcome run(const struct what *what, const struct way *way, int64_t chunk)
{
	static struct row row[ROWS];
	static float loss[ROWS * MOST_CHUNKS][TOKENS];
	struct rh_micro_batch micro[ROWS * MOST_CHUNKS];
	struct rh_workload work = {0};
	struct rig rig;
	struct outcome out = {0};
	int rows = way->is_brief ? (int)FEW_ROWS : (int)ROWS;
	uint64_t seed = check_seed();
	assert_int_equal(way->fates ? setenv(RH_HOOK_FATES, way->fates, 1) : unsetenv(RH_HOOK_FATES), 0);
	rig_open(&rig, what->model, what->adapter);
	rig.config.dtype = what->dtype;
	rig.config.device = (char *)(uintptr_t)way->device;
	rig.config.max_vram = way->cap;
	rig.config.sequence_chunk = chunk;
	rig.config.saved_dtype = what->saved;
	rig.config.per_device_train_batch_size = 1;
	rig.config.lora_dropout = what->dropout;
	rig.config.neftune_noise_alpha = what->noise;
	rig.config.lora_keys_given = what->dropout > 0 ? RH_LORA_DROPOUT : 0;
	rig.config.optimizer_staleness = way->stale;
	if (way->drives) {
		rig.config.spill = RH_SPILL_ACTIVATIONS;
		rig.config.max_ram = way->ram;
		rig.config.max_nvme = 1 << 28;
		rig.config.nvme_dirs = (struct rh_list){.item = group_drives.name, .count = (size_t)way->drives};
	}
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	const struct rh_chunk_rule rule = rh_chunk_rule_of(chunk, rig.session.model);
	for (int r = 0; r < rows; r++)
		row_make(way->is_brief ? few_documents[r] : row_documents[r], rig.session.model_config->vocab_size, &seed, &row[r]);
	out.chunks = cut_rows(&rule, row, rows, micro, &work.train, &work.classes);
	work.chunks = out.chunks > 1 ? out.chunks : 0;
	work.cache_rows = work.chunks ? TOKENS : 0;
	work.train.chunks = work.chunks;
	work.train_micro_batches = rows * out.chunks;
	rig.config.round_micro_batches = way->round;
	check_ok(rh_session_start(&rig.session, &work));
	for (int step = 0; step < STEPS; step++) {
		int64_t trained = 0, count = (step ? rows - 1 : rows) * out.chunks; /* the last step is a short one */
		double sum = 0;
		for (int64_t m = 0; m < count; m++) {
			micro[m].loss = loss[m];
			trained += micro[m].shape.head_rows;
		}
		check_ok(rig_train(rig.session.executor, micro, count, step, 1.0f / (float)trained));
		for (int64_t m = 0; m < count; m++)
			for (int64_t i = 0; i < micro[m].shape.head_rows; i++)
				sum += (double)loss[m][i];
		out.loss[step] = sum / (double)trained;
		out.norm[step] = rig_update(&rig, 3e-3, step);
	}
	struct rh_device_memory memory;
	rig.session.devices.device[0]->ops->memory(rig.session.devices.device[0], &memory);
	out.weights = rig_weights_hash(&rig.session);
	out.stages = rig.session.plan.stages.forward_stages + rig.session.plan.stages.backward_stages;
	out.device_bytes = rig.session.plan.stages.device_bytes;
	out.device_peak = memory.peak_bytes;
	out.nvme_bytes = rig.session.plan.bytes.boundaries_nvme;
	out.ram = rig.session.plan.bytes.total;
	out.kept = rig.session.plan.stages.kept_bytes;
	out.saved = rig.session.plan.stages.saved_bytes;
	rig_close(&rig);
	assert_int_equal(unsetenv(RH_HOOK_FATES), 0);
	return out;
}

#endif
