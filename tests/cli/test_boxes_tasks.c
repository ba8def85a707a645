/* Boxes that train a ViT, a BERT, and a model on preferences together: what one box trains, bit for bit, and the same evaluations. */
#include "cli/sync_boxes.h"

#define CLASSES "tests/reference/data/images/classes"

enum { LABELS = 3, STEPS = 6, ROWS_OF_TEXTS = 12 };

static void open_model(struct scratch *scratch, const char *model)
{
	scratch_open(scratch);
	check_ok(rh_dir_make(path_of("%s/model", scratch->dir)));
	write_text(path_of("%s/model/config.json", scratch->dir),
	           path_of("{%s, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "
	                   "\"num_labels\": %d, \"label2id\": {\"one\": 0, \"two\": 1, \"three\": 2}}",
	                   model, (int)LABELS));
}

static void open_images(struct scratch *scratch)
{
	open_model(scratch, "\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"image_size\": 12, "
	                    "\"patch_size\": 4");
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json",
	          path_of("%s/model/preprocessor_config.json", scratch->dir));
}

static void open_texts(struct scratch *scratch, const char *architecture)
{
	static const char *const words[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"};
	char model[512];
	snprintf(model, sizeof model,
	         "\"model_type\": \"bert\", \"architectures\": [\"%s\"], \"vocab_size\": 9, \"max_position_embeddings\": 32, "
	         "\"type_vocab_size\": 2, \"tie_word_embeddings\": false",
	         architecture);
	open_model(scratch, model);
	FILE *vocabulary = fopen(path_of("%s/model/vocab.txt", scratch->dir), "w"),
	     *rows = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_true(vocabulary && rows);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		fprintf(vocabulary, "%s\n", words[i]);
	for (int i = 0; i < ROWS_OF_TEXTS; i++)
		fprintf(rows, "{\"text\": \"%s %s b%s\"%s%d}\n", words[5 + i % 4], words[5 + i / 4], i % 5 ? "" : " c d",
		        strstr(architecture, "Masked") ? ", \"unused\": " : ", \"label\": ", i % LABELS);
	fclose(vocabulary);
	fclose(rows);
}

/* box 0: alone. data: lines of the boxes that have the rows. */
static void write_run(const struct scratch *scratch, const char *data, const char *keys, int boxes, int box, const struct box_wire *wire)
{
	char text[2048];
	int used = snprintf(text, sizeof text,
	                    "config_name: %s/model\noutput_dir: %s/out%d\nmax_steps: %d\nper_device_train_batch_size: 2\n"
	                    "gradient_accumulation_steps: 3\nlearning_rate: 3.0e-3\nlr_scheduler_type: constant\nlogging_steps: 1\n"
	                    "eval_strategy: steps\neval_steps: 3\ndevice: cpu:1\nsave_strategy: \"no\"\nallow: [overlap, duplicates]\n%s",
	                    scratch->dir, scratch->dir, box, (int)STEPS, keys);
	if (box < 2)
		used += snprintf(text + used, sizeof text - (size_t)used, "%s", data);
	if (box)
		used += snprintf(text + used, sizeof text - (size_t)used, "boxes: %d\nbox: %d\nbox_cuts: %s\n", boxes, box,
		                 boxes == 2 ? "[3]" : "[2, 4]");
	if (box > 1)
		used += snprintf(text + used, sizeof text - (size_t)used, "link_below: %s\n", wire[box - 2].connects);
	if (box && box < boxes)
		used += snprintf(text + used, sizeof text - (size_t)used, "link_above: listen:%s\n", wire[box - 1].listens);
	assert_true(used < (int)sizeof text);
	write_text(path_of("%s/run%d.yaml", scratch->dir, box), text);
}

/* What is told of the last evaluation: loss, accuracy, F1 and correlation. */
static char *told_of(const struct ran *ran)
{
	const char *at = strstr(ran->err, path_of("step %d: eval_loss", (int)STEPS));
	assert_non_null(at);
	return strndup(at, strcspn(at, "\n"));
}

/* told: what each must tell; NULL: whatever. */
static void run_boxes_of(const struct scratch *scratch, const char *data, const char *keys, int boxes, const char *told)
{
	struct ran ran[BOXES_MOST];
	struct box_wire wire[BOXES_MOST];
	for (int k = 0; k + 1 < boxes; k++)
		wire[k] = free_wire();
	for (int k = 1; k <= boxes; k++) {
		write_run(scratch, data, keys, boxes, k, wire);
		run_start(scratch, path_of("train %s/run%d.yaml", scratch->dir, k), 0, &ran[k - 1]);
	}
	for (int k = 0; k < boxes; k++)
		run_wait(&ran[k]);
	for (int k = boxes - 1; k >= 0; k--) {
		if (ran[k].status)
			fail_msg("box %d of %d: exit %d: %s", k + 1, boxes, ran[k].status, last_lines(ran[k].err));
		char *own = told_of(&ran[k]);
		if (told)
			assert_string_equal(own, told);
		free(own);
		run_free(&ran[k]);
	}
}

/* Of each line, of a step or an evaluation. */
static void check_losses(const struct scratch *scratch, int box)
{
	FILE *file[2] = {fopen(path_of("%s/out0/metrics.jsonl", scratch->dir), "r"),
	                 fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, box), "r")};
	static const char *const names[] = {
	        "loss",           "grad_norm",      "eval_loss", "trained_tokens",      "rewards/margins", "rewards/chosen",
	        "logps/rejected", "log_odds_ratio", "kl",        "eval_rewards/margins"};
	char line[2][4096];
	int lines = 0;
	assert_true(file[0] && file[1]);
	for (; fgets(line[0], sizeof line[0], file[0]); lines++) {
		assert_non_null(fgets(line[1], sizeof line[1], file[1]));
		json_t *one = json_loads(line[0], 0, NULL), *two = json_loads(line[1], 0, NULL);
		for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
			json_t *value = json_object_get(one, names[i]), *same = json_object_get(two, names[i]);
			assert_true(value ? json_equal(value, same) : !same);
		}
		json_decref(one);
		json_decref(two);
	}
	assert_int_equal(lines, STEPS + 2); /* and two evaluations */
	fclose(file[0]);
	fclose(file[1]);
}

static void check_sync(const struct scratch *scratch, const char *data, const char *keys)
{
	char linked[512];
	snprintf(linked, sizeof linked, "%smode: sync-pp\n", keys);
	write_run(scratch, data, keys, 1, 0, NULL);
	struct ran alone = run_line(scratch, "train %s/run0.yaml", scratch->dir);
	assert_int_equal(alone.status, 0);
	char *told = told_of(&alone);
	print_message("%s\n", told);
	for (int boxes = 2; boxes <= 3; boxes++) {
		run_boxes_of(scratch, data, linked, boxes, told);
		check_weights(scratch, "model.safetensors", boxes);
		for (int k = boxes; k; k--) {
			check_losses(scratch, k);
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
		}
	}
	free(told);
	run_free(&alone);
}

/* Without a flush: the same from run to run. */
static void check_paci(const struct scratch *scratch, const char *data, const char *keys)
{
	char linked[512];
	snprintf(linked, sizeof linked, "%smode: paci\n", keys);
	for (int turn = 0; turn < 2; turn++) {
		run_boxes_of(scratch, data, linked, 2, NULL);
		for (int k = 1; k <= 2; k++) {
			if (turn)
				assert_true(same_file(path_of("%s/first%d/model.safetensors", scratch->dir, k),
				                      path_of("%s/out%d/model.safetensors", scratch->dir, k)));
			else
				assert_int_equal(rename(path_of("%s/out%d", scratch->dir, k), path_of("%s/first%d", scratch->dir, k)), 0);
		}
	}
}

static void test_a_vit(void **state)
{
	(void)state;
	struct scratch scratch;
	static const char data[] = "train_file: " CLASSES "\nvalidation_file: " CLASSES "\n";
	open_images(&scratch);
	check_sync(&scratch, data, "");
	check_paci(&scratch, data, "");
	scratch_close(&scratch);
}

static void check_texts(const char *architecture)
{
	struct scratch scratch;
	char data[512];
	open_texts(&scratch, architecture);
	snprintf(data, sizeof data, "train_file: %s/rows.jsonl\nvalidation_file: %s/rows.jsonl\n", scratch.dir, scratch.dir);
	check_sync(&scratch, data, "max_length: 16\n");
	check_paci(&scratch, data, "max_length: 16\n");
	scratch_close(&scratch);
}

static void test_a_berts_classes(void **state)
{
	(void)state;
	check_texts("BertForSequenceClassification");
}

static void test_a_berts_masked_words(void **state)
{
	(void)state;
	check_texts("BertForMaskedLM");
}

/* The first box has the rows and their reference, which it sends with them; the last judges them. */
static void check_preferences(const char *rows, const char *keys)
{
	struct scratch scratch;
	char data[512];
	scratch_open(&scratch);
	copy_model(scratch.dir);
	check_ok(rename(path_of("%s/hf", scratch.dir), path_of("%s/model", scratch.dir)));
	edit_file(path_of("%s/model/config.json", scratch.dir), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
	edit_file(path_of("%s/model/config.json", scratch.dir), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4");
	edit_file(path_of("%s/model/config.json", scratch.dir), "\"layer_types\"", "\"unused\"");
	snprintf(data, sizeof data,
	         "train_file: tests/reference/preference/%s.jsonl\nvalidation_file: tests/reference/preference/%s.jsonl\n", rows, rows);
	check_sync(&scratch, data, keys);
	scratch_close(&scratch);
}

static void test_preferences(void **state)
{
	(void)state;
	check_preferences("pairs", "loss_type: [sigmoid, sft]\nmax_length: 64\n");
	check_preferences("plain", "loss_type: orpo\nmax_length: 64\n");
	check_preferences("judged", "loss_type: kto\nmax_length: 64\ntrain_sampling_strategy: sequential\n");
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_vit),
	        cmocka_unit_test(test_a_berts_classes),
	        cmocka_unit_test(test_a_berts_masked_words),
	        cmocka_unit_test(test_preferences),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
