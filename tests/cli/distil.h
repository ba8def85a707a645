/* Two boxes that distil, on a classification of a few images, for tests of the program. */
#ifndef RH_TESTS_CLI_DISTIL_H
#define RH_TESTS_CLI_DISTIL_H

#include "cli/boxes.h"

/* Twelve images in steps of four micro-batches of two: each second step has two. */
enum { IMAGES = 12, EPOCH = 2, STEPS = 6, MICROS = 4, ROWS_EACH = 2, LABELS = 50, CUT = 3 };

#define CLASSES "tests/reference/data/images/classes"
#define BOTH                                                                                                                               \
	"mode: fluidpipe\ndevice: cpu:1\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 3.0e-3\n"          \
	"lr_scheduler_type: constant\nmax_grad_norm: 0\nbox_cuts: [3]\nsave_strategy: steps\nsave_steps: 1\nsave_total_limit: 20\n"        \
	"logging_steps: 1\ntrain_file: " CLASSES "\n"

static inline void open_files(struct scratch *scratch, const char *keys)
{
	char config[2048];
	scratch_open(scratch);
	check_ok(rh_dir_make(path_of("%s/vit", scratch->dir)));
	int used = snprintf(config, sizeof config,
	                    "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"hidden_size\": 24, "
	                    "\"image_size\": 12, \"patch_size\": 4, \"intermediate_size\": 36, \"num_hidden_layers\": 4, "
	                    "\"num_attention_heads\": 2, \"num_labels\": %d, \"label2id\": {\"one\": 0, \"two\": 1",
	                    (int)LABELS);
	for (int label = 2; label < LABELS; label++)
		used += snprintf(config + used, sizeof config - (size_t)used, ", \"other%d\": %d", label, label);
	snprintf(config + used, sizeof config - (size_t)used, "}}");
	write_text(path_of("%s/vit/config.json", scratch->dir), config);
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json",
	          path_of("%s/vit/preprocessor_config.json", scratch->dir));
	write_text(path_of("%s/run.yaml", scratch->dir),
	           path_of("config_name: %s/vit\nmax_steps: %d\n" BOTH "%s", scratch->dir, (int)STEPS, keys));
}

static inline void start_box(const struct scratch *scratch, int box, const struct box_wire *wire, const char *options, struct ran *ran)
{
	const char *dir = scratch->dir;
	run_start(scratch,
	          path_of("train %s/run.yaml --output_dir %s/out%d --box %d %s%s %s", dir, dir, box, box,
	                  box == 1 ? "--link_above listen:" : "--link_below ", box == 1 ? wire->listens : wire->connects, options),
	          0, ran);
}

/* Both boxes to their end; what box 1 said. */
static inline char *run_boxes(const struct scratch *scratch, const char *options)
{
	struct ran ran[2];
	struct box_wire wire = free_wire();
	for (int k = 1; k <= 2; k++)
		start_box(scratch, k, &wire, options, &ran[k - 1]);
	for (int k = 0; k < 2; k++)
		run_wait(&ran[k]);
	for (int k = 1; k >= 0; k--)
		if (ran[k].status)
			fail_msg("box %d: exit %d: %s", k + 1, ran[k].status, last_lines(ran[k].err));
	char *said = strdup(ran[0].err);
	for (int k = 0; k < 2; k++)
		run_free(&ran[k]);
	return said;
}

static inline const char *weights(const struct scratch *scratch, int box, int step)
{
	return path_of("%s/out%d/checkpoint-%d/model.safetensors", scratch->dir, box, step);
}

/* 1: both files hold the same bytes. */
static inline int is_same_file(const char *left, const char *right)
{
	struct rh_safetensors *one, *other;
	check_ok(rh_safetensors_open(left, &one));
	check_ok(rh_safetensors_open(right, &other));
	int64_t count = rh_safetensors_count(one);
	int is = count == rh_safetensors_count(other);
	for (int64_t i = 0; is && i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(one, i), *same = rh_safetensors_find(other, tensor->name);
		is = same && tensor->bytes == same->bytes &&
		     !memcmp(tensor_bytes(one, tensor), tensor_bytes(other, same), (size_t)same->bytes);
	}
	rh_safetensors_close(one);
	rh_safetensors_close(other);
	return is;
}

static inline void move_outputs(const struct scratch *scratch, const char *to)
{
	for (int k = 1; k <= 2; k++)
		assert_int_equal(rename(path_of("%s/out%d", scratch->dir, k), path_of("%s/%s%d", scratch->dir, to, k)), 0);
}

static inline int is_same_step(const struct scratch *scratch, const char *kept, int box, int step)
{
	return is_same_file(path_of("%s/%s%d/checkpoint-%d/model.safetensors", scratch->dir, kept, box, step), weights(scratch, box, step));
}

#endif
