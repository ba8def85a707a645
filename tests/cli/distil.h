/* Two boxes that distil, on a classification of a few images, for tests of the program. */
#ifndef RH_TESTS_CLI_DISTIL_H
#define RH_TESTS_CLI_DISTIL_H

#include "cli/boxes.h"

/* Twelve samples in steps of four micro-batches of two: each second step has two. */
enum { SAMPLES = 12, EPOCH = 2, STEPS = 6, MICROS = 4, ROWS_EACH = 2, CUT = 3 };

/* Outputs of a head; so many that logits are most of what is sent for them. */
#ifndef LABELS
#define LABELS 50
#endif
#define CLASSES "tests/reference/data/images/classes"
#define BOTH                                                                                                                               \
	"mode: fluidpipe\ndevice: cpu:1\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 3.0e-3\n"          \
	"lr_scheduler_type: constant\nmax_grad_norm: 0\nbox_cuts: [3]\nsave_strategy: steps\nsave_steps: 1\nsave_total_limit: 20\n"        \
	"logging_steps: 1\n"

/* `model`: keys of its config.json; `data`: lines that name what is trained on. */
static inline void open_run(struct scratch *scratch, const char *model, const char *data, const char *keys)
{
	char config[2048];
	scratch_open(scratch);
	check_ok(rh_dir_make(path_of("%s/model", scratch->dir)));
	int used = snprintf(config, sizeof config,
	                    "{%s, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "
	                    "\"num_labels\": %d, \"label2id\": {\"one\": 0, \"two\": 1",
	                    model, (int)LABELS);
	for (int label = 2; label < LABELS; label++)
		used += snprintf(config + used, sizeof config - (size_t)used, ", \"other%d\": %d", label, label);
	snprintf(config + used, sizeof config - (size_t)used, "}}");
	write_text(path_of("%s/model/config.json", scratch->dir), config);
	write_text(path_of("%s/run.yaml", scratch->dir),
	           path_of("config_name: %s/model\nmax_steps: %d\n" BOTH "%s%s", scratch->dir, (int)STEPS, data, keys));
}

/* A ViT, and the twelve images. */
static inline void open_images(struct scratch *scratch, const char *keys)
{
	open_run(scratch,
	         "\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"image_size\": 12, \"patch_size\": 4",
	         "train_file: " CLASSES "\n", keys);
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json",
	          path_of("%s/model/preprocessor_config.json", scratch->dir));
}

/* A BERT, and six texts, of which an epoch has each twice: twelve samples. */
static inline void open_texts(struct scratch *scratch, const char *keys)
{
	static const char *const words[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"};
	open_run(scratch,
	         "\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], \"vocab_size\": 9, "
	         "\"max_position_embeddings\": 32, \"type_vocab_size\": 2",
	         "", keys);
	FILE *vocabulary = fopen(path_of("%s/model/vocab.txt", scratch->dir), "w"),
	     *rows = fopen(path_of("%s/texts.jsonl", scratch->dir), "w"), *run = fopen(path_of("%s/run.yaml", scratch->dir), "a");
	assert_true(vocabulary && rows && run);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		fprintf(vocabulary, "%s\n", words[i]);
	for (int i = 0; i < SAMPLES / 2; i++)
		fprintf(rows, "{\"text\": \"%s %s b\", \"label\": %d}\n", words[5 + i % 4], words[5 + i / 4], i % 3);
	fprintf(run, "train_file: [%s/texts.jsonl]\ndata_weights: [2]\nallow: [duplicates]\nmax_length: 16\n", scratch->dir);
	fclose(vocabulary);
	fclose(rows);
	fclose(run);
}

/* A language model of four layers, and rows of several targets: twelve samples. packed: each of two documents of six or seven tokens. */
static inline void open_language(struct scratch *scratch, const char *keys, int packed)
{
	static const char *const letters[] = {"q", "x", "z", "j"};
	scratch_open(scratch);
	copy_model(scratch->dir);
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4");
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"layer_types\"", "\"unused\"");
	FILE *rows = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(rows);
	for (int i = 0; i < (packed ? 2 : 1) * SAMPLES; i++)
		if (packed)
			fprintf(rows, "{\"text\": \"%s%s%s%s%s%s\"}\n", letters[i % 4], letters[i / 4 % 4], letters[i / 16], letters[i % 3],
			        letters[i % 2], i % 5 ? "" : "q");
		else
			fprintf(rows, "{\"prompt\": \"%s%s \", \"completion\": \"%s%.*s\"}\n", letters[i % 4], letters[i / 4],
			        letters[i % 3], 6 + 2 * (i % 5), "the cat sat on the mat");
	fclose(rows);
	write_text(path_of("%s/run.yaml", scratch->dir),
	           path_of("config_name: %s/hf\ntrain_file: %s/rows.jsonl\nallow: [duplicates]\nmax_steps: %d\n" BOTH "%s%s", scratch->dir,
	                   scratch->dir, (int)STEPS, packed ? "packing: true\nmax_length: 14\n" : "max_length: 32\n", keys));
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

/* 1: both files hold the same tensors. */
static inline int same_tensors(const char *left, const char *right)
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
	return same_tensors(path_of("%s/%s%d/checkpoint-%d/model.safetensors", scratch->dir, kept, box, step), weights(scratch, box, step));
}

#endif
