/* Random runs of the models of examples/models and of random shapes, as the words of `plan`. */
#ifndef RH_TESTS_PLAN_RANDOM_RUNS_H
#define RH_TESTS_PLAN_RANDOM_RUNS_H

#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_LINE = 1024 };

struct run_machine {
	const char *name;
	int devices_most, vram_gib, ram_gib; /* what a run may have */
};

/* The large ones in long runs alone. */
static const char *const run_models[] = {"qwen3-1.7b",        "llama-3.1-8b",  "mistral-7b",     "qwen3-8b",  "gpt-oss-20b",
                                         "qwen3.5-9b",        "gpt2-medium",   "bert-large",     "vit-large", "qwen3-30b-a3b",
                                         "qwen3.5-27b",       "gemma-3-27b",   "gemma-4-31b",    "qwen3-32b", "qwen3.5-35b-a3b",
                                         "qwen3.5-122b-a10b", "llama-3.1-70b", "qwen3-235b-a22b"};
enum { RUN_SMALL = 10, RUN_MODELS = sizeof run_models / sizeof *run_models, RUN_ENCODERS = 7 };
static const struct run_machine run_machines[] = {
        {"rtx4090x8", 8, 22, 700}, {"h100x1", 1, 76, 120}, {"rtx4090x1", 1, 22, 60}, {"rtx3060", 1, 10, 60}};

static inline int64_t run_pick(uint64_t *seed, int64_t count)
{
	return check_random(seed) % count;
}

static inline void run_add(char line[RUN_LINE], const char *format, ...)
{
	size_t used = strlen(line);
	va_list args;
	va_start(args, format);
	vsnprintf(line + used, RUN_LINE - used, format, args);
	va_end(args);
}

/* A dense model of a random shape, in a file of its own. */
static inline void run_write_shape(uint64_t *seed, const char *path)
{
	static const int widths[] = {512, 1024, 2048, 3072, 5120};
	int width = widths[run_pick(seed, 5)], heads = width / 64, layers = 2 + (int)run_pick(seed, 46);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "%d, "
	        "\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": %s, \"torch_dtype\": \"bfloat16\"}",
	        width, width * (2 + (int)run_pick(seed, 3)), layers, heads, run_pick(seed, 2) ? heads : heads / 4,
	        8000 << run_pick(seed, 5), run_pick(seed, 2) ? "true" : "false");
	assert_int_equal(fclose(file), 0);
}

/* A run but for the budget. */
static inline void run_draw(uint64_t *seed, const struct run_machine *machine, const char *shape, char line[RUN_LINE])
{
	static const int steps[] = {1, 2, 4, 8, 16, 64};
	int number = (int)run_pick(seed, getenv("RH_LONG") ? RUN_MODELS : RUN_SMALL),
	    is_encoder = number == RUN_ENCODERS || number == RUN_ENCODERS + 1, kind = (int)run_pick(seed, 4),
	    is_long = number != RUN_ENCODERS - 1;
	*line = 0;
	if (kind == 3) {
		run_write_shape(seed, shape);
		run_add(line, "--config-name %s --dtype bfloat16", shape);
		is_encoder = is_long = 0;
	} else if (kind == 2 || is_encoder) { /* as its file has it */
		run_add(line, "examples/models/%s.yaml", run_models[number]);
	} else {
		run_add(line, "--config-name examples/models/%s", run_models[number]);
	}
	run_add(line, " --hardware %s --gpus %d --gradient-accumulation-steps %d", machine->name,
	        1 << run_pick(seed, machine->devices_most > 1 ? 4 : 1), steps[run_pick(seed, 6)]);
	if (!is_encoder)
		run_add(line, " --per-device-train-batch-size %d --max-length %d", 1 << run_pick(seed, 3),
		        (is_long ? 512 : 256) << run_pick(seed, 3));
	if (!is_encoder && kind != 2 && run_pick(seed, 2))
		run_add(line, " --use-peft true --lora-target-modules all-linear");
}

#endif
