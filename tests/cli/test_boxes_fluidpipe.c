/* Mode fluidpipe, two processes: what box 1 computes is a local run of the lower layers as a model of their own, bit for bit, and does not
 * depend on box 2. What box 2 computes tests/train/test_fluidpipe.c compares with the whole model. */
#include "cli/boxes.h"

/* Five transformer layers, of which box 1 has two. */
#define FLUID   "mode: fluidpipe\ndevice: cpu:1\n"
#define CLASSES "tests/reference/data/images/classes"
#define CUT     "box_cuts: [3]\n"
#define SAVES   "save_strategy: steps\nsave_steps: 2\nlink_timeout: 2\nlink_give_up: 60\n"

static void start_box(const struct scratch *scratch, const char *keys, int box, const struct box_wire *wire, const char *options,
                      struct ran *ran)
{
	write_config(scratch, keys, 2, box, wire);
	run_start(scratch, path_of("train %s/run%d.yaml %s", scratch->dir, box, options), 0, ran);
}

static void run_boxes(const struct scratch *scratch, const char *keys, const char *options)
{
	struct ran ran[2];
	struct box_wire wire = free_wire();
	for (int k = 1; k <= 2; k++)
		start_box(scratch, keys, k, &wire, options, &ran[k - 1]);
	boxes_finish(ran, 2);
}

static void remove_outputs(const struct scratch *scratch)
{
	for (int k = 0; k <= 2; k++)
		if (rh_dir_exists(path_of("%s/out%d", scratch->dir, k)))
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
}

/* Tensors of the left file are those of the right, which may have more. */
static int64_t check_same(const char *left, const char *right)
{
	struct rh_safetensors *one, *other;
	check_ok(rh_safetensors_open(left, &one));
	check_ok(rh_safetensors_open(right, &other));
	int64_t count = rh_safetensors_count(one);
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(one, i), *same = rh_safetensors_find(other, tensor->name);
		if (!same || tensor->bytes != same->bytes ||
		    memcmp(tensor_bytes(one, tensor), tensor_bytes(other, same), (size_t)same->bytes))
			fail_msg("%s of %s differs from %s", tensor->name, left, right);
	}
	int64_t more = rh_safetensors_count(other) - count;
	rh_safetensors_close(one);
	rh_safetensors_close(other);
	return more;
}

static const char *weights(const struct scratch *scratch, int box, const char *where)
{
	return path_of("%s/out%d/%smodel.safetensors", scratch->dir, box, where);
}

/* The first `layers` transformer layers as a model of their own, trained alone. */
static void train_lower(const struct scratch *scratch, int layers)
{
	char with[40];
	snprintf(with, sizeof with, "\"num_hidden_layers\": %d", layers);
	write_config(scratch, "device: cpu:1\n" SAVES, 2, 0, NULL);
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"num_hidden_layers\": 5", with);
	struct ran alone = run_line(scratch, "train %s/run0.yaml", scratch->dir);
	if (alone.status)
		print_error("%s\n", alone.err);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	edit_file(path_of("%s/hf/config.json", scratch->dir), with, "\"num_hidden_layers\": 5");
}

/* Both parts put together have each tensor of the whole model once; box 1's is that of so many layers, and its head is not in it. */
static void check_joined(const struct scratch *scratch, int layers)
{
	const char *parts = path_of("%s/out1,%s/out2", scratch->dir, scratch->dir), *whole = path_of("%s/joined", scratch->dir);
	struct ran ran = run_line(scratch, "join --parts %s --output_dir %s", parts, whole);
	if (ran.status)
		print_error("%s\n", ran.err);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	int64_t upper = check_same(weights(scratch, 1, ""), path_of("%s/joined/model.safetensors", scratch->dir));
	int64_t lower = check_same(weights(scratch, 2, ""), path_of("%s/joined/model.safetensors", scratch->dir));
	struct rh_safetensors *part;
	check_ok(rh_safetensors_open(weights(scratch, 1, ""), &part));
	assert_int_equal(rh_safetensors_count(part), lower);
	assert_null(rh_safetensors_find(part, "lm_head.weight"));
	assert_null(rh_safetensors_find(part, "model.norm.weight"));
	for (int layer = layers; layer < 5; layer++) /* an extra layer has box 2's first's name */
		assert_null(rh_safetensors_find(part, path_of("model.layers.%d.mlp.up_proj.weight", layer)));
	rh_safetensors_close(part);
	assert_true(upper > 0);
	check_ok(rh_dir_remove(path_of("%s/joined", scratch->dir)));
}

static void check_box_1(const char *keys, int layers, int extra)
{
	struct scratch scratch;
	char all[512];
	make_files(&scratch);
	snprintf(all, sizeof all, FLUID SAVES "%s", keys);
	train_lower(&scratch, layers + extra);
	run_boxes(&scratch, all, "");
	for (int step = 2; step <= 6; step += 2) {
		char where[32];
		snprintf(where, sizeof where, "checkpoint-%d/", step);
		assert_int_equal(check_same(weights(&scratch, 0, where), weights(&scratch, 1, where)), 0);
	}
	check_joined(&scratch, layers);
	scratch_close(&scratch);
}

static void test_box_1_is_a_run_of_its_own(void **state)
{
	(void)state;
	check_box_1(CUT, 2, 0);
	check_box_1(CUT "fluidpipe_ahead: 1\n", 2, 0);
	check_box_1("box_cuts: [5]\n", 4, 0);
}

static void test_an_extra_layer_begins_as_box_2s_first_and_stays_with_box_1(void **state)
{
	(void)state;
	check_box_1(CUT "fluidpipe_recipe: FP-ND-EL\n", 2, 1);
}

/* Files of a tied model: box 2's head begins as the embedding, and is a matrix of its own. */
static void test_a_tied_head_is_untied_at_the_cut(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
	run_boxes(&scratch, FLUID CUT "save_strategy: \"no\"\n", "");
	check_joined(&scratch, 2);
	scratch_close(&scratch);
}

/* Three epochs of 7 rows, 75 tokens and 43 targets, in 2 steps of 4 micro-batches at most: what goes up is known to the byte, but for
 * frames' headers, credits and heartbeats, and the greeting; what comes down are two reports' worth. */
static void test_bytes_on_the_line_are_those_of_the_formula(void **state)
{
	(void)state;
	enum { EPOCHS = 3, STEPS_ALL = 6, MICROS = 7, TOKENS = 75, TARGETS = 43, HIDDEN = 32, MOST = 4, HEADER = 56, GREETING = 4096 };
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	for (int k = 1; k <= 2; k++)
		start_box(&scratch, FLUID CUT "save_strategy: \"no\"\n", k, &wire, "", &ran[k - 1]);
	for (int k = 0; k < 2; k++)
		run_wait(&ran[k]);
	long long up = 0, down = 0;
	const char *line = strstr(ran[0].err, "link: ");
	assert_non_null(line);
	assert_int_equal(sscanf(line, "link: %lld bytes up to box 2, %lld from there", &up, &down), 2);
	const long long heads = (STEPS_ALL + 2) * 8LL * (2 + 4 * MOST), batches = EPOCHS * 4LL * (2 * TOKENS + 2 * MICROS + 2 * TARGETS),
	                features = EPOCHS * 4LL * TOKENS * HIDDEN, messages = STEPS_ALL + 2 + STEPS_ALL + EPOCHS * MICROS;
	printf("%lld bytes up: %lld of activations, %lld of micro-batches, %lld of heads, %lld of frames and the greeting; %lld down\n", up,
	       features, batches, heads, up - features - batches - heads, down);
	assert_true(up >= heads + batches + features + messages * HEADER);
	assert_true(up <= heads + batches + features + 3 * messages * HEADER + GREETING);
	assert_true(down <= 2 * messages * HEADER + GREETING);
	for (int k = 0; k < 2; k++) {
		assert_int_equal(ran[k].status, 0);
		run_free(&ran[k]);
	}
	scratch_close(&scratch);
}

/* Box 1's checkpoint is a model, the partial one, and both parts joined are the full one: eval judges either. */
static void test_the_partial_and_the_full_model_are_judged(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	run_boxes(&scratch, FLUID CUT SAVES, "");
	struct ran ran = run_line(&scratch, "join --parts %s/out1,%s/out2 --output_dir %s/joined", scratch.dir, scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	const char *const models[] = {"out1/checkpoint-6", "joined"};
	for (int i = 0; i < 2; i++) {
		ran = run_line(&scratch, "eval --model_name_or_path %s/%s --validation_file %s/rows.jsonl --max_length 64 --device cpu:1",
		               scratch.dir, models[i], scratch.dir);
		if (ran.status)
			print_error("%s\n", ran.err);
		assert_int_equal(ran.status, 0);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static void test_a_language_model_does_not_distil(void **state)
{
	(void)state;
	struct scratch scratch;
	struct box_wire wire = free_wire();
	make_files(&scratch);
	write_config(&scratch, FLUID "fluidpipe_recipe: FP-DB\n", 2, 1, &wire);
	struct ran ran = run_line(&scratch, "train %s/run1.yaml", scratch.dir); /* which does not wait for box 2 */
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.err, "fluidpipe_recipe: boxes distil a causal language model by its likeliest tokens"));
	run_free(&ran);
	assert_false(rh_dir_exists(path_of("%s/out1", scratch.dir)));
	scratch_close(&scratch);
}

static void test_an_adapter_ends_up_whole_at_box_1(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	static const char lora[] = "lora_r: 4\nlora_target_modules: all-linear\nsave_strategy: \"no\"\n";
	write_config(&scratch, lora, 1, 0, NULL);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml --device cpu:1", scratch.dir);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	char keys[256];
	snprintf(keys, sizeof keys, FLUID "%s", lora);
	run_boxes(&scratch, keys, "");
	struct rh_safetensors *whole, *ours;
	check_ok(rh_safetensors_open(path_of("%s/out0/adapter_model.safetensors", scratch.dir), &whole));
	check_ok(rh_safetensors_open(path_of("%s/out1/adapter_model.safetensors", scratch.dir), &ours));
	assert_int_equal(rh_safetensors_count(whole), rh_safetensors_count(ours));
	for (int64_t i = 0; i < rh_safetensors_count(whole); i++)
		assert_non_null(rh_safetensors_find(ours, rh_safetensors_at(whole, i)->name));
	rh_safetensors_close(whole);
	rh_safetensors_close(ours);
	scratch_close(&scratch);
}

static void test_an_adapter_of_box_1_alone_is_refused_by_both(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	for (int k = 1; k <= 2; k++)
		start_box(&scratch, FLUID CUT "lora_r: 4\nlora_target_modules: '.*layers\\.0\\..*'\n", k, &wire, "", &ran[k - 1]);
	for (int k = 0; k < 2; k++) {
		run_wait(&ran[k]);
		assert_int_equal(ran[k].status, 1);
		assert_non_null(strstr(ran[k].err, "lora_target_modules: box 2 of mode fluidpipe, layers 3 to 6, would train nothing"));
		run_free(&ran[k]);
	}
	scratch_close(&scratch);
}

static void copy_outputs(const struct scratch *scratch)
{
	for (int k = 1; k <= 2; k++)
		copy_file(weights(scratch, k, ""), path_of("%s/kept%d.safetensors", scratch->dir, k));
}

static void check_kept(const struct scratch *scratch)
{
	for (int k = 1; k <= 2; k++)
		assert_int_equal(check_same(weights(scratch, k, ""), path_of("%s/kept%d.safetensors", scratch->dir, k)), 0);
}

enum { STEPS = 20 };
#define LONGER "--max_steps 20"
#define AGAIN  LONGER " --resume_from_checkpoint true"

/* Twelve images of two classes, a ViT that begins at random, cuts that the boxes choose: both halves learn, and the whole knows them. */
static void test_images_are_learnt(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran[2];
	scratch_open(&scratch);
	const char *dir = scratch.dir;
	check_ok(rh_dir_make(path_of("%s/vit", dir)));
	write_text(
	        path_of("%s/vit/config.json", dir),
	        "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"hidden_size\": 24, \"image_size\": 12, "
	        "\"patch_size\": 4, \"intermediate_size\": 36, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, \"num_labels\": 2}");
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json", path_of("%s/vit/preprocessor_config.json", dir));
	write_text(path_of("%s/run.yaml", dir), FLUID "max_steps: 60\nper_device_train_batch_size: 6\nlearning_rate: 3.0e-3\n"
	                                              "train_file: " CLASSES "\n");
	struct box_wire wire = free_wire();
	for (int k = 1; k <= 2; k++)
		run_start(&scratch,
		          path_of("train %s/run.yaml --config_name %s/vit --output_dir %s/out%d --box %d %s%s", dir, dir, dir, k, k,
		                  k == 1 ? "--link_above listen:" : "--link_below ", k == 1 ? wire.listens : wire.connects),
		          0, &ran[k - 1]);
	boxes_finish(ran, 2);
	ran[0] = run_line(&scratch, "join --parts %s/out1,%s/out2 --output_dir %s/joined", dir, dir, dir);
	assert_int_equal(ran[0].status, 0);
	run_free(&ran[0]);
	ran[0] = run_line(&scratch, "eval --model_name_or_path %s/joined --validation_file " CLASSES " --device cpu:1", dir);
	assert_int_equal(ran[0].status, 0);
	if (!strstr(ran[0].out, "accuracy 1.0000") && !strstr(ran[0].err, "accuracy 1.0000"))
		fail_msg("%s%s", ran[0].out, ran[0].err);
	run_free(&ran[0]);
	scratch_close(&scratch);
}

/* A frozen box 1 stays what it was, and box 2 learns from that: what it makes of it is another than of a box 1 that learns. */
static void test_a_frozen_box_1_stays_as_it_is(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	run_boxes(&scratch, FLUID CUT "save_strategy: \"no\"\nfluidpipe_freeze: true\n", "--max_steps 1");
	check_ok(rh_path_move(path_of("%s/out1", scratch.dir), path_of("%s/short1", scratch.dir)));
	remove_outputs(&scratch);
	run_boxes(&scratch, FLUID CUT "save_strategy: \"no\"\nfluidpipe_freeze: true\n", "");
	assert_int_equal(check_same(weights(&scratch, 1, ""), path_of("%s/short1/model.safetensors", scratch.dir)), 0);
	check_ok(rh_path_move(path_of("%s/out2", scratch.dir), path_of("%s/frozen2", scratch.dir)));
	remove_outputs(&scratch);
	run_boxes(&scratch, FLUID CUT "save_strategy: \"no\"\n", "");
	struct rh_bytes learnt, frozen;
	check_ok(rh_file_load(weights(&scratch, 2, ""), &learnt));
	check_ok(rh_file_load(path_of("%s/frozen2/model.safetensors", scratch.dir), &frozen));
	assert_int_equal(learnt.length, frozen.length);
	assert_memory_not_equal(learnt.bytes, frozen.bytes, learnt.length);
	rh_bytes_free(&learnt);
	rh_bytes_free(&frozen);
	scratch_close(&scratch);
}

static int64_t newest(const struct scratch *scratch, int box)
{
	int64_t step = STEPS;
	while (step > 0 && !is_there(scratch, box, step))
		step--;
	return step;
}

/* One box goes, by that signal, when both have a checkpoint. Started again, both end where an undisturbed run does. */
static void check_stopped(int victim, int how)
{
	struct scratch scratch;
	struct ran ran[2], again[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	run_boxes(&scratch, FLUID CUT SAVES, LONGER);
	copy_outputs(&scratch);
	remove_outputs(&scratch);
	for (int k = 1; k <= 2; k++)
		start_box(&scratch, FLUID CUT SAVES, k, &wire, LONGER, &ran[k - 1]);
	for (int i = 0; i < 60000 && !(is_there(&scratch, 1, 2) && is_there(&scratch, 2, 2)); i++) /* box 2 may be behind */
		usleep(1000);
	kill(ran[victim - 1].pid, how);
	run_wait(&ran[victim - 1]);
	if (how == SIGKILL) /* the other one learns of it when this one is back */
		start_box(&scratch, FLUID CUT SAVES, victim, &wire, AGAIN, &again[victim - 1]);
	run_wait(&ran[2 - victim]);
	if (ran[2 - victim].status != (how == SIGKILL))
		fail_msg("box %d: exit %d: %s", 3 - victim, ran[2 - victim].status, last_lines(ran[2 - victim].err));
	if (how == SIGTERM) {
		assert_int_equal(ran[victim - 1].status, 0);
		assert_int_equal(newest(&scratch, 1), newest(&scratch, 2));
		start_box(&scratch, FLUID CUT SAVES, victim, &wire, AGAIN, &again[victim - 1]);
	}
	start_box(&scratch, FLUID CUT SAVES, 3 - victim, &wire, AGAIN, &again[2 - victim]);
	boxes_finish(again, 2);
	for (int k = 0; k < 2; k++)
		run_free(&ran[k]);
	check_kept(&scratch);
	scratch_close(&scratch);
}

static void test_a_box_that_was_killed_goes_on_from_the_checkpoint_that_both_have(void **state)
{
	(void)state;
	check_stopped(1, SIGKILL);
	check_stopped(2, SIGKILL);
}

static void test_a_box_that_is_asked_to_stop_stops_both_at_the_same_step(void **state)
{
	(void)state;
	check_stopped(1, SIGTERM);
	check_stopped(2, SIGTERM);
}

/* One of the boxes was killed before it wrote its result: both write it once more. */
static void test_boxes_that_have_ended_are_started_again(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	run_boxes(&scratch, FLUID CUT SAVES, "");
	copy_outputs(&scratch);
	for (int lacks = 0; lacks <= 2; lacks++) {
		if (lacks)
			assert_false(unlink(weights(&scratch, lacks, "")));
		run_boxes(&scratch, FLUID CUT SAVES, "--resume_from_checkpoint true");
		check_kept(&scratch);
	}
	scratch_close(&scratch);
}

/* Box 1 has checkpoints of steps 10 and 11, for which it alone was asked, and box 2 of 10 and 20: box 1 has no place for that one. So at
 * step 30 the one of step 10 is still the newest that both have, and stays. */
static void test_a_checkpoint_that_one_box_was_asked_for_does_not_count(void **state)
{
	(void)state;
	static const char keys[] = FLUID CUT "save_strategy: steps\nsave_steps: 10\nsave_total_limit: 1\n";
	struct scratch scratch;
	make_files(&scratch);
	run_boxes(&scratch, keys, "--max_steps 10");
	write_text(path_of("%s/out1/SAVE", scratch.dir), "");
	write_text(path_of("%s/out1/checkpoint-20", scratch.dir), "");
	run_boxes(&scratch, keys, "--max_steps 30 --resume_from_checkpoint true");
	assert_true(is_there(&scratch, 1, 11) && is_there(&scratch, 2, 20));
	for (int k = 1; k <= 2; k++)
		assert_true(is_there(&scratch, k, 10) && is_there(&scratch, k, 30));
	scratch_close(&scratch);
}

/* A config.json with a word for each layer, as transformers 5 writes it: box 1's checkpoint is a model of its own, which evaluates, and
 * from which the boxes go on. */
static void test_a_word_for_each_layer_is_cut_with_the_layers(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	const char *config = path_of("%s/hf/config.json", scratch.dir);
	edit_file(config, "\"unused\": [", "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\",");
	run_boxes(&scratch, FLUID SAVES CUT, "--max_steps 2");
	run_ok(&scratch, "eval --model_name_or_path %s/out1/checkpoint-2 --validation_file %s/rows.jsonl --max_length 64", scratch.dir,
	       scratch.dir);
	run_boxes(&scratch, FLUID SAVES CUT, "--max_steps 4 --resume_from_checkpoint true");
	check_joined(&scratch, 2);
	run_ok(&scratch, "join --parts %s/out1,%s/out2 --output_dir %s/joined", scratch.dir, scratch.dir, scratch.dir);
	run_ok(&scratch, "eval --model_name_or_path %s/joined --validation_file %s/rows.jsonl --max_length 64", scratch.dir, scratch.dir);
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_box_1_is_a_run_of_its_own),
	        cmocka_unit_test(test_an_extra_layer_begins_as_box_2s_first_and_stays_with_box_1),
	        cmocka_unit_test(test_a_tied_head_is_untied_at_the_cut),
	        cmocka_unit_test(test_bytes_on_the_line_are_those_of_the_formula),
	        cmocka_unit_test(test_the_partial_and_the_full_model_are_judged),
	        cmocka_unit_test(test_images_are_learnt),
	        cmocka_unit_test(test_a_frozen_box_1_stays_as_it_is),
	        cmocka_unit_test(test_a_language_model_does_not_distil),
	        cmocka_unit_test(test_an_adapter_ends_up_whole_at_box_1),
	        cmocka_unit_test(test_an_adapter_of_box_1_alone_is_refused_by_both),
	        cmocka_unit_test(test_a_box_that_was_killed_goes_on_from_the_checkpoint_that_both_have),
	        cmocka_unit_test(test_a_box_that_is_asked_to_stop_stops_both_at_the_same_step),
	        cmocka_unit_test(test_boxes_that_have_ended_are_started_again),
	        cmocka_unit_test(test_a_word_for_each_layer_is_cut_with_the_layers),
	        cmocka_unit_test(test_a_checkpoint_that_one_box_was_asked_for_does_not_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
