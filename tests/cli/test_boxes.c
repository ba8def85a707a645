/* Several boxes, each a process of its own with a directory of its own, linked over this machine's TCP: together they compute what one box
 * does, bit for bit. */
#include "cli/sync_boxes.h"
#include "link/relay.h"

static void test_a_killed_box_is_started_again(void **state)
{
	(void)state;
	struct scratch scratch;
	for (int victim = 1; victim <= 2; victim++) {
		make_files(&scratch);
		check_killed(&scratch, "", victim, 0);
		scratch_close(&scratch);
	}
}

/* experts: the boxes' model has them, instead of one MLP a layer. */
static void check_runs_of(const char *keys, int adapters, int experts)
{
	const char *file = adapters ? "adapter_model.safetensors" : "model.safetensors";
	struct scratch scratch;
	make_files(&scratch);
	if (experts)
		write_experts(&scratch);
	write_config(&scratch, keys, 1, 0, NULL);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch.dir);
	if (alone.status)
		print_error("%s\n", alone.err);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++) {
		run_boxes(&scratch, keys, boxes, adapters);
		check_weights(&scratch, file, adapters ? 1 : boxes); /* box 1 has the adapter in one piece */
		if (!adapters)
			check_joined(&scratch, boxes);
		for (int k = 1; k <= boxes; k++) {
			assert_true(check_metrics(&scratch, k, 0) >= 20);
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch.dir, k)));
		}
	}
	scratch_close(&scratch);
}

static void check_runs(const char *keys, int adapters)
{
	check_runs_of(keys, adapters, 0);
}

static void test_all_weights(void **state)
{
	(void)state;
	check_runs("save_strategy: \"no\"\ndevice: cpu:1\n", 0);
}

static void test_all_weights_without_clipping(void **state)
{
	(void)state;
	check_runs("save_strategy: \"no\"\ndevice: cpu:2\nmax_grad_norm: 0\n", 0);
}

static void test_adapters(void **state)
{
	(void)state;
	check_runs("save_strategy: \"no\"\ndevice: cpu:2\nlora_r: 4\nlora_dropout: 0.1\nlora_target_modules: all-linear\n", 1);
}

/* The first box trains the embedding whole, the last one the head's matrix. */
static void test_adapters_beside_a_whole_embedding_and_head(void **state)
{
	(void)state;
	check_runs("save_strategy: \"no\"\ndevice: cpu:2\nlora_r: 4\nlora_modules_to_save: [embed_tokens, lm_head]\n", 1);
}

/* Schedules that split backwards defer weight gradients. Four boxes: with fewer the orders are much alike. */
static void check_split(const char *keys, const char *linked, int adapters)
{
	struct scratch scratch;
	char all[512];
	make_files(&scratch);
	snprintf(all, sizeof all, "save_strategy: \"no\"\n%s", keys);
	write_config(&scratch, all, 1, 0, NULL);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch.dir);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	for (size_t s = 0; s < 4; s++) {
		snprintf(all, sizeof all, "save_strategy: \"no\"\nschedule: %s\n%s%s",
		         (const char *const[]){"zb-h1", "zb-h2", "zb-1p", "zb-2p"}[s], keys, linked);
		run_boxes(&scratch, all, BOXES_MOST, 0);
		check_weights(&scratch, adapters ? "adapter_model.safetensors" : "model.safetensors", adapters ? 1 : BOXES_MOST);
		for (int k = 1; k <= BOXES_MOST; k++)
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch.dir, k)));
	}
	scratch_close(&scratch);
}

static void test_split_backwards(void **state)
{
	(void)state;
	check_split("device: cpu:1\nmax_vram: 600KiB\n", "", 0); /* several stages a box */
	check_split("device: cpu:1\nmax_vram: 600KiB\n", "round_micro_batches: 4\nbox_cuts: [1, 2, 3]\n", 0); /* and one unit a step */
	check_split("device: cpu:2\nmax_grad_norm: 0\n", "box_cuts: [1, 2, 5]\n", 0);
	check_split("device: cpu:1\nlora_r: 4\nlora_dropout: 0.1\nlora_target_modules: all-linear\n", "round_micro_batches: 2\n", 1);
}

/* A box's routers learn from what tokens chose in the layers of the boxes above, and all boxes tell the whole loss. */
static void test_experts_with_a_load_balancing_loss(void **state)
{
	(void)state;
	check_runs_of("save_strategy: \"no\"\ndevice: cpu:1\nrouter_aux_loss_coef: 0.5\n", 0, 1);
	check_runs_of("save_strategy: \"no\"\ndevice: cpu:2\nrouter_aux_loss_coef: 0.1\nlora_r: 4\nlora_target_modules: all-linear\n", 1,
	              1);
}

/* Evaluations as metrics.jsonl has them, without their times: equal to the bit. */
static void check_evaluations(const struct scratch *scratch, int box, int expected)
{
	static const char *const names[] = {"step", "eval_loss", "eval_tokens", "eval_rows"};
	FILE *file[2] = {fopen(path_of("%s/out0/metrics.jsonl", scratch->dir), "r"),
	                 fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, box), "r")};
	char line[2][4096];
	int found = 0;
	assert_true(file[0] && file[1]);
	while (fgets(line[0], sizeof line[0], file[0])) {
		assert_non_null(fgets(line[1], sizeof line[1], file[1]));
		json_t *one = json_loads(line[0], 0, NULL), *two = json_loads(line[1], 0, NULL);
		int is_eval = json_object_get(one, "eval_loss") != NULL;
		assert_int_equal(json_object_get(two, "eval_loss") != NULL, is_eval);
		for (size_t i = 0; is_eval && i < sizeof names / sizeof *names; i++) {
			assert_non_null(json_object_get(one, names[i]));
			assert_true(json_equal(json_object_get(one, names[i]), json_object_get(two, names[i])));
		}
		found += is_eval;
		json_decref(one);
		json_decref(two);
	}
	assert_int_equal(found, expected);
	fclose(file[0]);
	fclose(file[1]);
}

/* Box 1 alone has the rows: an odd number of them, whose answers are few. `single` and `linked`: more keys of one box, and of several. */
static void check_evaluated(const char *keys, const char *single, const char *linked, int boxes)
{
	const char *file = strstr(keys, "lora_r") ? "adapter_model.safetensors" : "model.safetensors";
	struct scratch scratch;
	char all[1024];
	make_files(&scratch);
	write_text(path_of("%s/held.jsonl", scratch.dir),
	           "{\"prompt\": \"a cat \", \"completion\": \"sat\"}\n{\"prompt\": \"the dog is \", \"completion\": \"ran\"}\n"
	           "{\"prompt\": \"cats \", \"completion\": \"ran\"}\n{\"prompt\": \"it \", \"completion\": \"sat\"}\n"
	           "{\"prompt\": \"then we \", \"completion\": \"ran\"}\n");
	int saves = strstr(keys, "load_best") != NULL;
	snprintf(all, sizeof all, "save_strategy: %s\neval_strategy: steps\neval_steps: 2\nper_device_eval_batch_size: 2\n%s",
	         saves ? "steps\nsave_steps: 2\nsave_total_limit: 1" : "\"no\"", keys);
	size_t used = strlen(all);
	snprintf(all + used, sizeof all - used, "%s", single);
	write_config(&scratch, all, 1, 0, NULL);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch.dir);
	if (alone.status)
		print_error("%s\n", alone.err);
	assert_int_equal(alone.status, 0);
	assert_non_null(strstr(alone.err, "accuracy"));
	if (saves)
		assert_non_null(strstr(alone.err, "the result is"));
	run_free(&alone);
	snprintf(all + used, sizeof all - used, "%s", linked);
	run_boxes(&scratch, all, boxes, 0);
	for (int k = 1; k <= boxes; k++)
		check_evaluations(&scratch, k, 10);
	check_weights(&scratch, file, *file == 'a' ? 1 : boxes);
	scratch_close(&scratch);
}

static void test_evaluations_are_one_boxs(void **state)
{
	(void)state;
	static const char lora[] = "lora_r: 4\nlora_dropout: 0.1\n";
	check_evaluated("device: cpu:1\n", "", "box_cuts: [3]\n", 2);
	check_evaluated("device: cpu:2\n", "", "box_cuts: [2, 4]\n", 3);
	check_evaluated(lora, "device: cpu:2\n", "device: cpu:2\nbox_cuts: [1]\n", 2);
	check_evaluated(lora, "device: cpu:1\n", "device: cpu:1\nmax_vram: 400KiB\nbox_cuts: [3, 6]\n", 3); /* stages within a box */
	check_evaluated("max_grad_norm: 0\n", "schedule: paci\ndevice: cpu:2\nforward_cuts: [3]\n",
	                "mode: paci\ndevice: cpu:1\nround_micro_batches: 1\nbox_cuts: [3]\n", 2);
}

/* Each box takes its part of the best checkpoint, here the one with the largest loss: one of the first. */
static void test_the_best_checkpoint_is_one_boxs(void **state)
{
	(void)state;
	static const char worst[] = "load_best_model_at_end: true\ngreater_is_better: true\ndevice: cpu:1\n",
	                  worst_lora[] = "load_best_model_at_end: true\ngreater_is_better: true\ndevice: cpu:1\nlora_r: 4\n";
	check_evaluated(worst, "", "box_cuts: [2, 4]\n", 3);
	check_evaluated(worst_lora, "", "box_cuts: [3]\n", 2);
}

/* The model's file with its table once more, as the head's. */
static void add_head(const char *from, const char *to)
{
	enum { MOST = 64 };
	struct rh_safetensors_entry entry[MOST];
	struct rh_safetensors *file;
	struct rh_safetensors_out *out;
	check_ok(rh_safetensors_open(from, &file));
	int64_t count = rh_safetensors_count(file);
	assert_true(count < MOST);
	for (int64_t i = 0; i <= count; i++) {
		const struct rh_safetensor *tensor =
		        i < count ? rh_safetensors_at(file, i) : rh_safetensors_find(file, "model.embed_tokens.weight");
		assert_non_null(tensor);
		entry[i] = (struct rh_safetensors_entry){
		        .name = i < count ? tensor->name : "lm_head.weight", .dtype = tensor->dtype, .rank = tensor->rank};
		memcpy(entry[i].shape, tensor->shape, sizeof entry[i].shape);
	}
	check_ok(rh_safetensors_create(to, entry, count + 1, &out));
	for (int64_t i = 0; i <= count; i++) {
		const struct rh_safetensor *tensor =
		        i < count ? rh_safetensors_at(file, i) : rh_safetensors_find(file, "model.embed_tokens.weight");
		check_ok(rh_safetensors_write(out, tensor_bytes(file, tensor), tensor->bytes));
	}
	check_ok(rh_safetensors_commit(out));
	rh_safetensors_close(file);
}

/* A table that is embedding and head is trained as two, which begin equal: as one box trains the model that has it twice. */
static void test_tied_tables_are_trained_apart(void **state)
{
	(void)state;
	static const char keys[] = "save_strategy: \"no\"\ndevice: cpu:1\n";
	struct scratch scratch;
	char tied[128], own[128], name[128];
	scratch_open(&scratch);
	copy_model(scratch.dir);
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS);
	snprintf(name, sizeof name, "config_name: %s/hf\n", scratch.dir);
	snprintf(tied, sizeof tied, "model_name_or_path: %s/hf\n", scratch.dir);
	snprintf(own, sizeof own, "model_name_or_path: %s/own\n", scratch.dir);
	copy_dir(path_of("%s/hf", scratch.dir), path_of("%s/own", scratch.dir));
	edit_file(path_of("%s/own/config.json", scratch.dir), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
	add_head(path_of("%s/hf/model.safetensors", scratch.dir), path_of("%s/own/model.safetensors", scratch.dir));
	write_config(&scratch, keys, 1, 0, NULL);
	edit_file(path_of("%s/run0.yaml", scratch.dir), name, own);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml", scratch.dir), ran[2];
	if (alone.status)
		print_error("%s\n", alone.err);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	struct box_wire wire = free_wire();
	for (int k = 1; k <= 2; k++) {
		write_config(&scratch, keys, 2, k, &wire);
		edit_file(path_of("%s/run%d.yaml", scratch.dir, k), name, tied);
		run_start(&scratch, path_of("train %s/run%d.yaml", scratch.dir, k), 0, &ran[k - 1]);
	}
	boxes_finish(ran, 2);
	check_weights(&scratch, "model.safetensors", 2);
	for (int k = 1; k <= 2; k++) {
		size_t length;
		char *json = read_bytes(path_of("%s/out%d/config.json", scratch.dir, k), &length);
		assert_non_null(strstr(json, "\"tie_word_embeddings\": false"));
		free(json);
	}
	scratch_close(&scratch);
}

/* Box 2 would write it beside its part of the model. */
static void test_another_tokenizer_is_named(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	char name[128], own[128];
	make_files(&scratch);
	copy_dir(path_of("%s/hf", scratch.dir), path_of("%s/own", scratch.dir));
	write_text(path_of("%s/own/tokenizer.json", scratch.dir), "{\"version\": \"another\"}");
	snprintf(name, sizeof name, "config_name: %s/hf\n", scratch.dir);
	snprintf(own, sizeof own, "config_name: %s/own\n", scratch.dir);
	for (int k = 1; k <= 2; k++) {
		write_config(&scratch, "device: cpu:1\n", 2, k, &wire);
		if (k == 2)
			edit_file(path_of("%s/run2.yaml", scratch.dir), name, own);
		run_start(&scratch, path_of("train %s/run%d.yaml", scratch.dir, k), 0, &ran[k - 1]);
	}
	for (int k = 0; k < 2; k++) {
		run_wait(&ran[k]);
		assert_int_equal(ran[k].status, 1);
		if (!strstr(ran[k].err, "the boxes differ in tokenizer"))
			fail_msg("box %d: %s", k + 1, last_lines(ran[k].err));
		assert_false(rh_dir_exists(path_of("%s/out%d", scratch.dir, k + 1)));
		run_free(&ran[k]);
	}
	scratch_close(&scratch);
}

/* With the files that are there; box 1 has the layers below the cut. */
static void check_adapter_with_cut(const struct scratch *scratch, int cut)
{
	static const char keys[] = "save_strategy: \"no\"\ndevice: cpu:2\nlora_r: 4\nlora_target_modules: all-linear\n";
	char linked[256];
	write_config(scratch, keys, 1, 0, NULL);
	run_ok(scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch->dir);
	snprintf(linked, sizeof linked, "%sbox_cuts: [%d]\n", keys, cut);
	run_boxes(scratch, linked, 2, 1);
	check_weights(scratch, "adapter_model.safetensors", 1);
}

/* The first box has the embedding alone: it sends activations, and has no backward. */
static void test_adapters_above_a_box_that_trains_nothing(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	check_adapter_with_cut(&scratch, 1);
	scratch_close(&scratch);
}

/* The head of box 2 needs the embedding's table. Box 1 has 84 tensors of the adapter, more than a link takes at once. */
static void test_adapters_below_a_box_with_a_tied_head(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"num_hidden_layers\": 5", "\"num_hidden_layers\": 8");
	check_adapter_with_cut(&scratch, 7);
	scratch_close(&scratch);
}

/* No config.json is made of such a file's metadata, and an adapter needs none. */
static void test_adapters_of_a_gguf_file(void **state)
{
	(void)state;
	static const char keys[] = "save_strategy: \"no\"\ndevice: cpu:1\nlora_r: 4\nlora_target_modules: all-linear\n";
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	for (int k = 0; k <= 2; k++) {
		write_config(&scratch, keys, k ? 2 : 1, k, &wire);
		edit_file(path_of("%s/run%d.yaml", scratch.dir, k), path_of("config_name: %s/hf", scratch.dir),
		          "model_name_or_path: " MODELS "gguf-gemma3/model.gguf");
	}
	run_ok(&scratch, "train %s/run0.yaml", scratch.dir);
	for (int k = 1; k <= 2; k++)
		run_start(&scratch, path_of("train %s/run%d.yaml", scratch.dir, k), 0, &ran[k - 1]);
	boxes_finish(ran, 2);
	check_weights(&scratch, "adapter_model.safetensors", 1);
	scratch_close(&scratch);
}

/* The profile of a machine, of cores with so many FLOP/s, for a program started while `owner` is the user. */
static void make_profile(const struct scratch *scratch, const char *owner, double flops_per_s)
{
	char text[512];
	snprintf(text, sizeof text,
	         "name: local\nsource: made up\ndevices: 1\ndevice:\n  name: cores\n  on_host_cores: 1\n  peaks: {f32: %g}\n"
	         "  other_flops_per_s: %g\n  memory_bytes_per_s: %g\n  source: made up\nhost: {ram: 64GiB, cores: 2, source: made up}\n",
	         flops_per_s, flops_per_s, 100 * flops_per_s);
	check_ok(rh_dir_make(path_of("%s/%s", scratch->dir, owner)));
	check_ok(rh_dir_make(path_of("%s/%s/roundhouse", scratch->dir, owner)));
	check_ok(rh_dir_make(path_of("%s/%s/roundhouse/hardware", scratch->dir, owner)));
	write_text(path_of("%s/%s/roundhouse/hardware/local.yaml", scratch->dir, owner), text);
}

/* Two boxes, each of its own user. measured: box 1 must say so of the line. */
static void run_owned(const struct scratch *scratch, const char *const owner[2], const char *keys, const struct box_wire *wire,
                      int measured, const char *options)
{
	struct ran ran[2];
	for (int k = 1; k <= 2; k++) {
		write_config(scratch, keys, 2, k, wire);
		check_ok(setenv("XDG_CONFIG_HOME", path_of("%s/%s", scratch->dir, owner[k - 1]), 1));
		run_start(scratch, path_of("train %s/run%d.yaml %s", scratch->dir, k, options), 0, &ran[k - 1]);
	}
	unsetenv("XDG_CONFIG_HOME");
	siginfo_t ended;
	assert_int_equal(waitid(P_PID, (id_t)ran[0].pid, &ended, WEXITED | WNOWAIT), 0);
	size_t length;
	char *said = read_bytes(ran[0].err_path, &length);
	if ((strstr(said, ", as measured now") != NULL) != measured)
		fail_msg("%s", last_lines(said));
	free(said);
	boxes_finish(ran, 2);
}

static void run_unequal(const struct scratch *scratch, const char *const owner[2], const char *options)
{
	struct box_wire wire = free_wire();
	run_owned(scratch, owner, SAVES FAST_LINES, &wire, 0, options);
}

/* The cut that a box's checkpoint names. */
static int cut_of(const struct scratch *scratch, int box, int step)
{
	size_t length;
	char *text = read_bytes(path_of("%s/out%d/checkpoint-%d/config.yaml", scratch->dir, box, step), &length);
	const char *at = strstr(text, "\nbox_cuts: [\"");
	assert_non_null(at);
	int cut = atoi(at + strlen("\nbox_cuts: [\""));
	free(text);
	return cut;
}

/* Without box_cuts the faster box gets more of the seven layers: plan says the same, and a run that goes on keeps them. */
static void test_cuts_follow_speeds_and_are_kept(void **state)
{
	(void)state;
	static const char *const slow_first[] = {"slow", "fast"}, *const fast_first[] = {"fast", "slow"};
	struct scratch scratch;
	make_files(&scratch);
	make_profile(&scratch, "slow", 1e9);
	make_profile(&scratch, "fast", 4e9);
	run_unequal(&scratch, slow_first, "--max_steps 4");
	int cut = cut_of(&scratch, 1, 4);
	assert_int_equal(cut_of(&scratch, 2, 4), cut);
	assert_true(cut > 0 && cut <= 3); /* even shares would be 3, and the head is heavier than a block */
	run_unequal(&scratch, fast_first, "--resume_from_checkpoint true");
	assert_int_equal(cut_of(&scratch, 1, 6), cut);
	write_config(&scratch, SAVES, 1, 0, NULL);
	for (int i = 0; i < 2; i++) {
		struct ran whole =
		        run_line(&scratch, "train %s/run0.yaml %s", scratch.dir, i ? "--resume_from_checkpoint true" : "--max_steps 4");
		assert_int_equal(whole.status, 0);
		run_free(&whole);
	}
	check_weights(&scratch, "model.safetensors", 2);
	for (int i = 0; i < 2; i++) {
		const char *const *owner = i ? fast_first : slow_first;
		struct ran ran = run_line(&scratch,
		                          "plan %s/run1.yaml --json --box_hardware "
		                          "%s/%s/roundhouse/hardware/local.yaml,%s/%s/roundhouse/hardware/local.yaml",
		                          scratch.dir, scratch.dir, owner[0], scratch.dir, owner[1]);
		json_t *json = json_loads(ran.out, 0, NULL);
		if (!json)
			print_error("%s\n", ran.err);
		assert_non_null(json);
		json_int_t first = json_integer_value(json_object_get(json_array_get(json_object_get(json, "boxes"), 1), "first_layer"));
		assert_true(i ? first > cut : first == cut);
		json_decref(json);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* A file SAVE in one box's output_dir: all boxes save, and the run can go on from that; also in mode paci, whose steps do not flush. */
static void test_a_file_SAVE_of_one_box_asks_all_boxes(void **state)
{
	(void)state;
	static const char *const modes[] = {"mode: sync-pp\n", "mode: paci\nround_micro_batches: 1\nbox_cuts: [2]\n"};
	for (int i = 0; i < 4; i++) {
		struct scratch scratch;
		struct ran ran[2];
		struct box_wire wire = free_wire();
		char keys[256];
		int asked = 1 + i / 2, found = 0;
		make_files(&scratch);
		snprintf(keys, sizeof keys, "%sdevice: cpu:1\nsave_strategy: \"no\"\n", modes[i % 2]);
		check_ok(rh_dir_make(path_of("%s/out%d", scratch.dir, asked)));
		write_text(path_of("%s/out%d/SAVE", scratch.dir, asked), "");
		for (int k = 1; k <= 2; k++) {
			write_config(&scratch, keys, 2, k, &wire);
			run_start(&scratch, path_of("train %s/run%d.yaml", scratch.dir, k), 0, &ran[k - 1]);
		}
		boxes_finish(ran, 2);
		assert_false(rh_file_exists(path_of("%s/out%d/SAVE", scratch.dir, asked)));
		for (int step = 1; step <= 6; step++) {
			found += is_there(&scratch, asked, step);
			assert_int_equal(is_there(&scratch, 1, step), is_there(&scratch, 2, step));
		}
		assert_int_equal(found, 1);
		scratch_close(&scratch);
	}
}

static void forget_runs(const struct scratch *scratch)
{
	for (int k = 1; k <= 2; k++)
		check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
}

/* The same two boxes over a fast line have equal shares. Over a slow one, which takes longer than all layers, box 2 gets all that it can:
 * it makes no activations again. So it is whether the line's keys say so or the boxes measure it; and a run that goes on keeps its cuts. */
static void test_cuts_follow_a_measured_line(void **state)
{
	(void)state;
	static const char *const equal[] = {"equal", "equal"};
	struct scratch scratch;
	struct box_wire wire = free_wire(), far = wire;
	struct relay relay;
	make_files(&scratch);
	make_profile(&scratch, "equal", 1e11);
	run_owned(&scratch, equal, SAVES FAST_LINES, &wire, 0, "--max_steps 2");
	assert_true(cut_of(&scratch, 1, 2) >= 3);
	forget_runs(&scratch);
	run_owned(&scratch, equal, SAVES "link_mbit_per_second: 20\nlink_latency_ms: 5\n", &wire, 0, "--max_steps 2");
	assert_int_equal(cut_of(&scratch, 1, 2), 1);
	forget_runs(&scratch);
	relay_open(&relay, 0, check_seed());
	relay.shape[0] = relay.shape[1] = (struct shape){.latency_ms = 5, .mbit = 20};
	snprintf(far.connects, sizeof far.connects, "127.0.0.1:%d", relay.port);
	relay_start(&relay, atoi(strchr(wire.listens, ':') + 1));
	run_owned(&scratch, equal, SAVES "link_mbit_per_second: none\n", &far, 1, "--max_steps 4");
	relay_close(&relay);
	assert_int_equal(cut_of(&scratch, 2, 4), 1);
	run_owned(&scratch, equal, SAVES FAST_LINES, &wire, 0, "--resume_from_checkpoint true");
	assert_int_equal(cut_of(&scratch, 2, 6), 1);
	write_config(&scratch, SAVES, 1, 0, NULL);
	run_ok(&scratch, "train %s/run0.yaml --max_steps 4", scratch.dir);
	run_ok(&scratch, "train %s/run0.yaml --resume_from_checkpoint true", scratch.dir);
	check_weights(&scratch, "model.safetensors", 2);
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_all_weights),
	        cmocka_unit_test(test_all_weights_without_clipping),
	        cmocka_unit_test(test_adapters),
	        cmocka_unit_test(test_adapters_beside_a_whole_embedding_and_head),
	        cmocka_unit_test(test_split_backwards),
	        cmocka_unit_test(test_experts_with_a_load_balancing_loss),
	        cmocka_unit_test(test_adapters_above_a_box_that_trains_nothing),
	        cmocka_unit_test(test_adapters_below_a_box_with_a_tied_head),
	        cmocka_unit_test(test_adapters_of_a_gguf_file),
	        cmocka_unit_test(test_evaluations_are_one_boxs),
	        cmocka_unit_test(test_the_best_checkpoint_is_one_boxs),
	        cmocka_unit_test(test_another_tokenizer_is_named),
	        cmocka_unit_test(test_tied_tables_are_trained_apart),
	        cmocka_unit_test(test_a_killed_box_is_started_again),
	        cmocka_unit_test(test_a_file_SAVE_of_one_box_asks_all_boxes),
	        cmocka_unit_test(test_cuts_follow_speeds_and_are_kept),
	        cmocka_unit_test(test_cuts_follow_a_measured_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
