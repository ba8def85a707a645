/* Host memory as the system counts it: VmHWM of a whole run, HugetlbPages with it, stays below what the plan says, for vocabularies of real
 * size; under a control group of the plan's size the kernel kills nothing. */
#include "cli/runner.h"

#include "core/json.h"

#include <math.h>

/* A tokenizer.json of byte-level BPE with `entries` entries: all strings of 64 letters, shorter ones first, each merged of the one without
 * its last letter and that letter; and two blanks, so that nothing parts a run of them. */
static void write_tokenizer(const char *path, int entries)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": %d, \"content\": \"<eos>\", \"single_word\": false, \"lstrip\": false, "
	        "\"rstrip\": false, \"normalized\": false, \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
	        "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null, "
	        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"ignore_merges\": false, \"vocab\": {\"\\u0120\": "
	        "0",
	        entries - 1);
	entries--;
	char(*token)[6] = calloc((size_t)entries, sizeof *token);
	int count = 1, parent = 0;
	for (int i = 0; i < 64 && count < entries - 1; i++)
		token[count++][0] = letters[i];
	while (count < entries - 1) {
		parent++;
		for (int i = 0; i < 64 && count < entries - 1; i++)
			snprintf(token[count++], sizeof *token, "%.4s%c", token[parent], letters[i]);
	}
	for (int i = 1; i < count; i++)
		fprintf(file, ",\n\"%s\": %d", token[i], i);
	fprintf(file, ",\n\"\\u0120\\u0120\": %d}, \"merges\": [\"\\u0120 \\u0120\"", count);
	for (int i = 65; i < count; i++) {
		size_t length = strlen(token[i]) - 1;
		fprintf(file, ",\n\"%.*s %s\"", (int)length, token[i], token[i] + length);
	}
	fprintf(file, "]}}");
	free(token);
	assert_int_equal(fclose(file), 0);
}

static void write_model(const char *dir, int vocabulary, int layers)
{
	check_ok(rh_dir_make(dir));
	write_text(path_of("%s/tokenizer_config.json", dir), "{\"eos_token\": \"<eos>\"}");
	write_text(
	        path_of("%s/config.json", dir),
	        path_of("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32, "
	                "\"intermediate_size\": 64, "
	                "\"num_hidden_layers\": %d, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 16, "
	                "\"vocab_size\": "
	                "%d, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	                "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\", \"eos_token_id\": %d}",
	                layers, vocabulary, vocabulary - 1));
	write_tokenizer(path_of("%s/tokenizer.json", dir), vocabulary);
}

/* The last row has `last_words`. */
static void write_rows(const char *path, int rows, int words, int last_words)
{
	uint64_t seed = 5;
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	for (int r = 0; r < rows; r++) {
		fprintf(file, "{\"text\": \"");
		for (int w = 0; w < (r + 1 < rows ? words : last_words); w++)
			fprintf(file, "%c%c%c ", 'a' + check_random(&seed) % 26, 'a' + check_random(&seed) % 26,
			        'a' + check_random(&seed) % 26);
		fprintf(file, "\"}\n");
	}
	assert_int_equal(fclose(file), 0);
}

/* ---- a control group ---- */

static const char *group_root, *group_limit;
static char group[128];
static long long group_bytes;

/* Finds out whether this user may make one. */
static int group_is_to_be_had(void)
{
	static const char *const roots[][2] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}};
	for (int i = 0; i < 2; i++) {
		snprintf(group, sizeof group, "%s/rh-test-%ld", roots[i][0], (long)getpid());
		if (mkdir(group, 0777))
			continue;
		if (access(path_of("%s/%s", group, roots[i][1]), W_OK) == 0) {
			group_root = roots[i][0];
			group_limit = roots[i][1];
			return 1;
		}
		rmdir(group);
	}
	return 0;
}

static int write_number(const char *path, long long number)
{
	char text[32];
	int file = open(path, O_WRONLY), length = snprintf(text, sizeof text, "%lld", number);
	ssize_t written = file < 0 ? -1 : write(file, text, (size_t)length);
	if (file >= 0)
		close(file);
	return written == length ? 0 : -1;
}

static void enter_group(void)
{
	if (write_number(path_of("%s/cgroup.procs", group), getpid()))
		_exit(124);
}

/* ---- runs ---- */

static char disk[128]; /* outputs: files in memory would count as the group's */

struct peaks {
	double peak, plan;
};

/* A figure of /proc/PID/status in bytes; 0: there is none. */
static double status_bytes(const char *status, const char *name)
{
	const char *at = strstr(status, name);
	return at ? strtod(at + strlen(name), NULL) * 1024 : 0;
}

/* Waits for a run's end. Returns VmHWM and the most of HugetlbPages beside it as the kernel told them, every 2 ms. */
static double watch(struct ran *ran)
{
	double resident = 0, reserved = 0;
	siginfo_t ended = {0};
	while (!waitid(P_PID, (id_t)ran->pid, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid) {
		char status[8192] = "";
		int file = open(path_of("/proc/%ld/status", (long)ran->pid), O_RDONLY | O_CLOEXEC);
		if (file >= 0 && read(file, status, sizeof status - 1) > 0) {
			resident = fmax(resident, status_bytes(status, "VmHWM:"));
			reserved = fmax(reserved, status_bytes(status, "HugetlbPages:"));
		}
		if (file >= 0)
			close(file);
		usleep(2000);
	}
	run_wait(ran);
	return resident + reserved;
}

/* Runs a line that ends with --json: its peak as the run says, or as the kernel said of it while it ran, and its plan. */
static struct ran run_counted(const struct scratch *scratch, struct peaks *peaks, const char *format, ...)
{
	char line[2048];
	struct ran ran;
	json_t *json = NULL;
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	run_start(scratch, line, 0, &ran);
	double watched = watch(&ran);
	if (ran.status || rh_json_parse(ran.out, strlen(ran.out), "output", &json))
		fail_msg("%s: exit %d: %s", line, ran.status, ran.err);
	peaks->peak = fmax(watched, json_number_value(json_object_get(json_object_get(json, "peak_bytes"), "ram")));
	peaks->plan = json_number_value(json_object_get(json_object_get(json_object_get(json, "plan"), "peak_bytes"), "ram"));
	json_decref(json);
	return ran;
}

static void check_line(const struct scratch *scratch, const char *out, const char *line, int *held, double *closest)
{
	struct peaks peaks;
	struct ran ran = run_counted(scratch, &peaks, "%s", line);
	run_free(&ran);
	if (peaks.peak > peaks.plan)
		fail_msg("%.2f MiB of %.2f planned: %s", peaks.peak / 1048576, peaks.plan / 1048576, line);
	*closest = peaks.peak / peaks.plan > *closest ? peaks.peak / peaks.plan : *closest;
	if (!group_root)
		return;
	/* what it said is what it gets: killed, it would exit by SIGKILL */
	group_bytes = (long long)peaks.plan + (15 << 20);
	check_ok(write_number(path_of("%s/%s", group, group_limit), group_bytes));
	check_ok(rh_dir_remove(out));
	if (strstr(line, "resume"))
		return;
	run_prepare = enter_group;
	ran = run_line(scratch, "%s --max_ram %lld", line, (long long)peaks.plan);
	run_prepare = NULL;
	if (ran.status)
		fail_msg("under %lld bytes: exit %d: %s: %s", group_bytes, ran.status, line, ran.err);
	run_free(&ran);
	(*held)++;
}

static void test_a_runs_memory_is_the_plans(void **state)
{
	(void)state;
	static const int vocabularies[] = {1000, 32000, 132000, 256000}; /* 132000: just above a power of two, by which tables grow */
	static const char *const kinds[] = {
	        "",
	        "--use_peft true",
	        "--bf16 true",
	        "--bf16 true --state_layout split8",
	        "--save_steps 1 --eval_split 0.2 --eval_strategy steps --eval_steps 1",
	        "--packing true --device cpu:2",
	        "--packing true --device cpu:4 --use_peft true --gradient_accumulation_steps 12 --save_strategy no",
	        "--device cpu:3 --use_peft true --gradient_accumulation_steps 9 --spill weights,optimizer "
	        "--max_nvme 400MiB --nvme_dirs %s/nvme",
	        "--spill optimizer,weights --max_nvme 200MiB --nvme_dirs %s/nvme"};
	enum { KINDS = sizeof kinds / sizeof *kinds };
	const char *build = getenv("RH_BUILD");
	char out[160];
	int is_long = getenv("RH_LONG") != NULL, runs = is_long ? 200 : KINDS, held = 0;
	uint64_t seed = check_seed();
	double closest = 0;
	struct scratch scratch;
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	scratch_open(&scratch);
	if (!group_is_to_be_had())
		printf("no control group can be made here: limits are not tried\n");
	for (int i = 0; i < 4; i++)
		write_model(path_of("%s/m%d", scratch.dir, vocabularies[i]), vocabularies[i], 2);
	snprintf(disk, sizeof disk, "%s/rh-memory-XXXXXX", build ? build : "build");
	assert_non_null(mkdtemp(disk));
	snprintf(out, sizeof out, "%s/out", disk);
	check_ok(rh_dir_make(path_of("%s/nvme", disk)));
	for (int run = 0; run < runs; run++) {
		char kind[320], line[1280];
		int vocabulary = vocabularies[is_long ? check_random(&seed) % 4 : (uint32_t)run % 4];
		int words = is_long ? 1 << check_random(&seed) % 12 : 40, last_words = words;
		if (run % 8 == 6) /* of 4 bytes: a row of 1 to 60 MB */
			last_words = is_long ? 250000 * (1 + (int)(check_random(&seed) % 60)) : 2000000;
		snprintf(kind, sizeof kind, kinds[is_long ? check_random(&seed) % KINDS : (uint32_t)run % KINDS], disk);
		write_rows(path_of("%s/rows", scratch.dir), 24, words, last_words);
		check_ok(rh_dir_remove(out));
		snprintf(line, sizeof line,
		         "train --config_name %s/m%d --train_file %s/rows --output_dir %s --max_length %d --max_steps 3 "
		         "--per_device_train_batch_size %d --max_vram 256MiB --json %s",
		         scratch.dir, vocabulary, scratch.dir, out, 32 << check_random(&seed) % 4, 1 + (int)(check_random(&seed) % 4),
		         kind);
		check_line(&scratch, out, line, &held, &closest);
		snprintf(line + strlen(line), sizeof line - strlen(line), " --max_steps 5 --resume_from_checkpoint true");
		if (run % 4 == 3 && !group_root)
			check_line(&scratch, out, line, &held, &closest);
	}
	printf("%d configurations, the fullest at %.3f of its plan; %d under a control group\n", runs, closest, held);
	if (group_root)
		rmdir(group);
	check_ok(rh_dir_remove(disk));
	scratch_close(&scratch);
}

/* A model of a real vocabulary, and rows for it. */
static void make_run(struct scratch *scratch)
{
	scratch_open(scratch);
	write_model(path_of("%s/m", scratch->dir), 128000, 2);
	write_rows(path_of("%s/rows", scratch->dir), 24, 40, 40);
}

/* A resumed run takes no more than is planned either: it loads what it saved, to the bit. */
static void test_a_resumed_runs_memory_is_the_plans(void **state)
{
	(void)state;
	static const char *const kinds[] = {"", "--use_peft true", "--bf16 true"};
	struct scratch scratch;
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	make_run(&scratch);
	for (int i = 0; i < 3; i++) {
		const char *line = "train --config_name %s/m --train_file %s/rows --output_dir %s/out%d --max_length 64 --save_steps 1 "
		                   "--per_device_train_batch_size 2 --max_vram 256MiB --max_steps 4 --json %s %s";
		const char *file = strstr(kinds[i], "peft") ? "adapter_model" : "model";
		char made[160], kept[160];
		snprintf(made, sizeof made, "%s/out%d/%s.safetensors", scratch.dir, i, file);
		snprintf(kept, sizeof kept, "%s/kept%d", scratch.dir, i);
		struct peaks fresh, resumed;
		struct ran first = run_counted(&scratch, &fresh, line, scratch.dir, scratch.dir, scratch.dir, i, kinds[i], "");
		check_ok(rename(made, kept));
		for (int step = 3; step <= 4; step++)
			check_ok(rh_dir_remove(path_of("%s/out%d/checkpoint-%d", scratch.dir, i, step)));
		struct ran again = run_counted(&scratch, &resumed, line, scratch.dir, scratch.dir, scratch.dir, i, kinds[i],
		                               "--resume_from_checkpoint true");
		assert_true(same_file(made, kept)); /* also of tensors that are read in several pieces */
		printf("%s: fresh %.1f, resumed %.1f of %.1f MiB\n", kinds[i], fresh.peak / 1048576, resumed.peak / 1048576,
		       resumed.plan / 1048576);
		if (resumed.peak > resumed.plan)
			fail_msg("%s: %.2f MiB of %.2f planned", kinds[i], resumed.peak / 1048576, resumed.plan / 1048576);
		run_free(&first);
		run_free(&again);
	}
	scratch_close(&scratch);
}

/* A run on a GGUF file makes the tokenizer's files of its vocabulary twice, for the first checkpoint and at the end, in the same memory. */
static void test_a_run_on_a_gguf_files_memory_is_the_plans(void **state)
{
	(void)state;
	enum { BESIDE = 5 << 19 }; /* of a checkpoint, beside its ring; making the files takes 24 MiB */
	static const char *const kinds[][2] = {{"lora", "--lora_r 8"}, {"whole", ""}}, *const saves[] = {"--save_strategy no",
	                                                                                                 "--save_steps 1"};
	struct scratch scratch;
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	make_run(&scratch);
	const char *train = "train --%s %s/%s --train_file %s/rows --output_dir %s/%s --max_length 64 --max_vram 256MiB --max_steps 2 %s";
	struct ran made = run_line(&scratch, train, "config_name", scratch.dir, "m", scratch.dir, scratch.dir, "whole", "");
	struct ran written = run_line(&scratch, "export --model_name_or_path %s/whole --outfile %s/m.gguf", scratch.dir, scratch.dir);
	if (made.status || written.status)
		fail_msg("%s%s", made.err, written.err);
	for (int k = 0; k < 2; k++) {
		struct peaks peaks[2];
		for (int i = 0; i < 2; i++) {
			struct ran ran =
			        run_counted(&scratch, &peaks[i], train, "model_name_or_path", scratch.dir, "m.gguf", scratch.dir,
			                    scratch.dir, path_of("%s%d", kinds[k][0], i), path_of("--json %s %s", kinds[k][1], saves[i]));
			printf("%s %s: %.2f MiB of %.2f planned\n", kinds[k][0], saves[i], peaks[i].peak / 1048576,
			       peaks[i].plan / 1048576);
			if (peaks[i].peak > peaks[i].plan)
				fail_msg("%s %s: %.2f MiB of %.2f planned", kinds[k][0], saves[i], peaks[i].peak / 1048576,
				         peaks[i].plan / 1048576);
			run_free(&ran);
		}
		if (peaks[1].peak > peaks[0].peak + (peaks[1].plan - peaks[0].plan) + BESIDE)
			fail_msg("%.1f MiB with checkpoints, %.1f without", peaks[1].peak / 1048576, peaks[0].peak / 1048576);
	}
	run_free(&made);
	run_free(&written);
	scratch_close(&scratch);
}

/* A last row of `pieces` times `piece`, between `before` and `behind`. */
static void add_row(const char *path, const char *before, const char *piece, int pieces, const char *behind)
{
	FILE *file = fopen(path, "a");
	assert_non_null(file);
	fputs(before, file);
	for (int i = 0; i < pieces; i++)
		fputs(piece, file);
	fputs(behind, file);
	assert_int_equal(fclose(file), 0);
}

static struct peaks run_rows(const struct scratch *scratch)
{
	struct peaks peaks;
	struct ran ran = run_counted(scratch, &peaks,
	                             "train --config_name %s/m --train_file %s/rows --output_dir %s/out --max_length 64 --max_steps 2 "
	                             "--save_strategy no --json",
	                             scratch->dir, scratch->dir, scratch->dir);
	run_free(&ran);
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
	return peaks;
}

/* A row that takes more memory while it is read than the run takes later: the plan counts it, whether it is many words, one run of blanks
 * (just too long for an array of a power of two), or a column of numbers that nobody reads. */
static void test_reading_the_longest_row_is_planned(void **state)
{
	(void)state;
	enum { ROWS = 8, WORDS = 40 };
	static const struct {
		const char *before, *piece;
		int pieces;
		const char *behind;
	} rows[] = {{"{\"text\":\"", "word ", 2000000, "\"}\n"},
	            {"{\"text\":\"a", " ", 9000000, "b\"}\n"},
	            {"{\"text\":\"a\",\"ids\":[0", ",1", 4000000, "]}\n"}};
	struct scratch scratch;
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	scratch_open(&scratch);
	write_model(path_of("%s/m", scratch.dir), 1000, 2);
	write_rows(path_of("%s/rows", scratch.dir), ROWS, WORDS, WORDS);
	struct peaks usual = run_rows(&scratch);
	for (int i = 0; i < 3; i++) {
		write_rows(path_of("%s/rows", scratch.dir), ROWS, WORDS, WORDS);
		add_row(path_of("%s/rows", scratch.dir), rows[i].before, rows[i].piece, rows[i].pieces, rows[i].behind);
		struct peaks longest = run_rows(&scratch);
		printf("%.1f of %.1f MiB; without the long row %.1f of %.1f\n", longest.peak / 1048576, longest.plan / 1048576,
		       usual.peak / 1048576, usual.plan / 1048576);
		assert_true(longest.peak > usual.plan);
		assert_true(longest.peak <= longest.plan);
	}
	scratch_close(&scratch);
}

/* Short rows of a large vocabulary: the head's gradient is a product of few rows over the whole vocabulary, on each device. */
static void test_few_rows_of_a_large_vocabulary_take_what_is_planned(void **state)
{
	(void)state;
	struct scratch scratch;
	struct peaks peaks;
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	scratch_open(&scratch);
	write_model(path_of("%s/m", scratch.dir), 132000, 2);
	write_rows(path_of("%s/rows", scratch.dir), 200, 5, 5);
	struct ran ran = run_counted(&scratch, &peaks,
	                             "train --config_name %s/m --train_file %s/rows --output_dir %s/out --max_length 64 --lora_r 4 "
	                             "--per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_vram 512MiB --device cpu:4 "
	                             "--save_strategy no --max_steps 2 --json",
	                             scratch.dir, scratch.dir, scratch.dir);
	run_free(&ran);
	printf("%.2f MiB of %.2f planned\n", peaks.peak / 1048576, peaks.plan / 1048576);
	if (peaks.peak > peaks.plan)
		fail_msg("%.2f MiB of %.2f planned", peaks.peak / 1048576, peaks.plan / 1048576);
	scratch_close(&scratch);
}

/* A line a step, as many as there are: what the run keeps of them has a bound, which is planned. */
static void test_log_lines_take_no_more_than_is_planned(void **state)
{
	(void)state;
	struct scratch scratch;
	struct peaks peaks[2];
	if (!CHECK_RESIDENT)
		check_skip("sanitizers take memory of their own");
	scratch_open(&scratch);
	write_model(path_of("%s/m", scratch.dir), 300, 1);
	write_rows(path_of("%s/rows", scratch.dir), 8, 4, 4);
	int steps = getenv("RH_LONG") ? 60000 : 15000;
	for (int i = 0; i < 2; i++) {
		struct ran ran =
		        run_counted(&scratch, &peaks[i],
		                    "train --config_name %s/m --train_file %s/rows --output_dir %s/out%d --max_length 8 --lora_r 1 "
		                    "--save_steps %d --max_steps %d --logging_steps %d --json",
		                    scratch.dir, scratch.dir, scratch.dir, i, steps / 3, steps, i ? steps : 1);
		run_free(&ran);
		if (peaks[i].peak > peaks[i].plan)
			fail_msg("%.2f MiB of %.2f planned", peaks[i].peak / 1048576, peaks[i].plan / 1048576);
	}
	printf("%d lines: %.2f MiB of %.2f planned; one line: %.2f of %.2f\n", steps, peaks[0].peak / 1048576, peaks[0].plan / 1048576,
	       peaks[1].peak / 1048576, peaks[1].plan / 1048576);
	assert_true(peaks[0].peak - peaks[1].peak < 3 << 20);
	scratch_close(&scratch);
}

/* A control group's limit counts, whatever max_ram says. */
static void test_max_ram_above_the_groups_limit_is_bounded(void **state)
{
	(void)state;
	struct scratch scratch;
	make_run(&scratch);
	const char *fake = path_of("%s/machine", scratch.dir);
	check_ok(rh_dir_make(path_of("%s/proc/self", fake)));
	check_ok(rh_dir_make(path_of("%s/sys/fs/cgroup/box", fake)));
	write_text(path_of("%s/proc/self/cgroup", fake), "0::/box\n");
	write_text(path_of("%s/sys/fs/cgroup/box/memory.max", fake), "4194304\n");
	write_text(path_of("%s/sys/fs/cgroup/box/memory.current", fake), "1048576\n");
	write_text(path_of("%s/sys/fs/cgroup/box/memory.stat", fake), "inactive_file 0\nactive_file 0\n");
	setenv("RH_MACHINE_ROOT", fake, 1);
	struct ran ran = run_line(
	        &scratch, "train --config_name %s/m --train_file %s/rows --output_dir %s/out --max_length 64 --max_steps 1 --max_ram 1GiB",
	        scratch.dir, scratch.dir, scratch.dir);
	unsetenv("RH_MACHINE_ROOT");
	check_failed(&ran, "; raise max_ram, ");
	if (!strstr(ran.err, "max_ram: 1024.0 MiB, but this process's control group leaves "))
		fail_msg("%s", ran.err);
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_runs_memory_is_the_plans),
	        cmocka_unit_test(test_a_resumed_runs_memory_is_the_plans),
	        cmocka_unit_test(test_a_run_on_a_gguf_files_memory_is_the_plans),
	        cmocka_unit_test(test_reading_the_longest_row_is_planned),
	        cmocka_unit_test(test_few_rows_of_a_large_vocabulary_take_what_is_planned),
	        cmocka_unit_test(test_log_lines_take_no_more_than_is_planned),
	        cmocka_unit_test(test_max_ram_above_the_groups_limit_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
