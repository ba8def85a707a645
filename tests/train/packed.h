/* Adapters trained on a base whose weights stay packed, or are made plain as they are loaded. */
#ifndef RH_TESTS_TRAIN_PACKED_H
#define RH_TESTS_TRAIN_PACKED_H

#include "train/rig.h"

#include "ckpt/gguf.h"
#include "ckpt/gguf_out.h"
#include "ckpt/merge.h"
#include "core/float16.h"

enum { PACKED_STEPS = 2, PACKED_MICROS = 4, PACKED_DOCUMENTS = 2, PACKED_LENGTH = 9, PACKED_TOKENS = PACKED_DOCUMENTS * PACKED_LENGTH };

struct packed_case {
	const char *file, *device;
	enum rh_dtype dtype;
	int is_plain;       /* made plain as it is loaded */
	int64_t round, cap; /* round_micro_batches, max_vram; 0: not given */
	enum rh_form made;  /* of matrices that the file has in full precision; PLAIN: they stay so */
	char *nvme;         /* a directory: weights lie there; NULL: in memory */
	int fp8;            /* products in 8 bits, on a CPU too, as its oracle has them */
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
	config->quantize = is->made;
	config->fp8 = is->fp8;
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
	struct rh_merged merged;
	check_ok(rh_merge(&(struct rh_merge){.model = "tests/reference/models/gguf-llama/model.gguf", .gguf = path, .dtype = RH_Q8_0},
	                  &merged));
}

/* Where a block has its fp16 scales, and which; -1: none. Values are below one half then. */
struct packed_scales {
	int at[2];
	uint16_t half[2];
};
static inline struct packed_scales packed_scales(enum rh_dtype dtype)
{
	const float tenth = 0.0125f, step = 0x1p-14f;
	switch (dtype) {
	case RH_Q4_1:
	case RH_Q5_1:
		return (struct packed_scales){{0, 2}, {rh_f32_to_f16(tenth), rh_f32_to_f16(-0.1f)}};
	case RH_Q2_K:
		return (struct packed_scales){{80, 82}, {rh_f32_to_f16(0.005f), rh_f32_to_f16(0.01f)}};
	case RH_Q3_K:
		return (struct packed_scales){{108, -1}, {rh_f32_to_f16(0.002f), 0}};
	case RH_Q4_K:
	case RH_Q5_K:
		return (struct packed_scales){{0, 2}, {rh_f32_to_f16((dtype == RH_Q4_K ? 4 : 2) * step), rh_f32_to_f16(32 * step)}};
	case RH_Q6_K:
		return (struct packed_scales){{208, -1}, {rh_f32_to_f16(step), 0}};
	case RH_IQ4_NL:
	case RH_IQ4_XS:
		return (struct packed_scales){{0, -1}, {rh_f32_to_f16(dtype == RH_IQ4_NL ? 0.002f : step), 0}};
	case RH_MXFP4:
	case RH_NVFP4:
		return (struct packed_scales){{-1, -1}, {0, 0}};
	default:
		return (struct packed_scales){{0, -1}, {rh_f32_to_f16(dtype == RH_Q8_0 ? 0.001f : tenth), 0}};
	}
}

/* Blocks of random values below one half, or near zero: the bytes of a whole tensor. */
static inline void packed_blocks(enum rh_dtype dtype, uint64_t *seed, uint8_t *out, int64_t bytes)
{
	int64_t block = rh_dtype_block_bytes(dtype);
	struct packed_scales scales = packed_scales(dtype);
	for (int64_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(check_random(seed) >> 16);
	for (uint8_t *at = out; at < out + bytes; at += block) {
		for (int s = 0; s < 2; s++)
			if (scales.at[s] >= 0)
				memcpy(at + scales.at[s], &scales.half[s], sizeof scales.half[s]);
		if (dtype == RH_MXFP4)
			*at = 122;
		if (dtype == RH_NVFP4)
			memset(at, 0x18, 4);
	}
}

/* A small model at `path` of the llama architecture, all of whose matrices are in one type: embedding and head too. */
static inline void packed_make(const char *path, enum rh_dtype dtype, uint64_t seed)
{
	enum { HIDDEN = 256, WIDE = 512, WORDS = 288, KEYS = 128 };
	static const char *const without[] = {"llama.embedding_length", "llama.feed_forward_length", "llama.block_count",
	                                      "llama.rope.dimension_count", NULL};
	static const struct {
		const char *name;
		int64_t rows, cols; /* rows 0: a norm's */
	} tensors[] = {{"token_embd.weight", WORDS, HIDDEN},
	               {"output.weight", WORDS, HIDDEN},
	               {"output_norm.weight", 0, HIDDEN},
	               {"blk.0.attn_norm.weight", 0, HIDDEN},
	               {"blk.0.ffn_norm.weight", 0, HIDDEN},
	               {"blk.0.attn_q.weight", HIDDEN, HIDDEN},
	               {"blk.0.attn_k.weight", KEYS, HIDDEN},
	               {"blk.0.attn_v.weight", KEYS, HIDDEN},
	               {"blk.0.attn_output.weight", HIDDEN, HIDDEN},
	               {"blk.0.ffn_gate.weight", WIDE, HIDDEN},
	               {"blk.0.ffn_up.weight", WIDE, HIDDEN},
	               {"blk.0.ffn_down.weight", HIDDEN, WIDE}};
	enum { TENSORS = sizeof tensors / sizeof *tensors };
	static uint8_t bytes[WIDE * HIDDEN * 4];
	struct rh_gguf *like;
	struct rh_gguf_out *out;
	check_ok(rh_gguf_open("tests/reference/models/gguf-llama/model.gguf", &like));
	check_ok(rh_gguf_out_create(path, &out));
	check_ok(rh_gguf_out_copy(out, like, without));
	check_ok(rh_gguf_out_u32(out, "llama.embedding_length", HIDDEN));
	check_ok(rh_gguf_out_u32(out, "llama.feed_forward_length", WIDE));
	check_ok(rh_gguf_out_u32(out, "llama.block_count", 1));
	check_ok(rh_gguf_out_u32(out, "llama.rope.dimension_count", HIDDEN / 4));
	for (int t = 0; t < TENSORS; t++)
		check_ok(rh_gguf_out_tensor(out, tensors[t].name, tensors[t].rows ? dtype : RH_F32, tensors[t].rows, tensors[t].cols));
	check_ok(rh_gguf_out_begin(out));
	for (int t = 0; t < TENSORS; t++) {
		const float one = 1;
		int64_t length =
		        rh_dtype_bytes(tensors[t].rows ? dtype : RH_F32, (tensors[t].rows ? tensors[t].rows : 1) * tensors[t].cols);
		if (tensors[t].rows)
			packed_blocks(dtype, &seed, bytes, length);
		for (int64_t i = 0; !tensors[t].rows && i < length; i += 4)
			memcpy(bytes + i, &one, sizeof one);
		check_ok(rh_gguf_out_write(out, bytes, length));
		check_ok(rh_gguf_out_end(out));
	}
	check_ok(rh_gguf_out_commit(out));
	rh_gguf_close(like);
}

#endif
