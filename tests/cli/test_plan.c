/* plan, as a person calls it: the same bytes twice, what a run then reserves, machines by name, and what does not fit. */
#include "runner.h"

#include "config/config_internal.h"
#include "core/json.h"

#include <math.h>
#include <sched.h>

#define ROWS "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a dog ran\"}\n{\"text\": \"the end\"}\n{\"text\": \"it is so\"}\n"

static void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
	write_text(path_of("%s/run.yaml", dir), path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\noutput_dir: %s/out\n"
	                                                "max_length: 64\nmax_steps: 2\nper_device_train_batch_size: 1\n"
	                                                "gradient_accumulation_steps: 4\n",
	                                                dir, dir, dir));
	setenv("XDG_CONFIG_HOME", dir, 1); /* no profile of this machine's */
}

static json_t *answer_of(const struct ran *ran, int status)
{
	json_error_t error;
	if (ran->status != status)
		fail_msg("exit %d: %s", ran->status, ran->err);
	json_t *json = json_loads(ran->out, 0, &error);
	assert_non_null(json);
	return json;
}

static json_t *result_of(const struct ran *ran)
{
	return answer_of(ran, 0);
}

static int64_t bytes_at(const json_t *json, const char *outer, const char *inner, const char *tier)
{
	const json_t *at = json_object_get(json_object_get(json, outer), inner);
	at = tier ? json_object_get(at, tier) : at;
	assert_true(json_is_integer(at));
	return json_integer_value(at);
}

static void test_plan_twice_prints_the_same_bytes(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran first = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --json", scratch.dir);
	struct ran second = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --json", scratch.dir);
	assert_string_equal(first.out, second.out);
	json_t *json = result_of(&first);
	static const char *const fields[] = {"fits",       "tokens_per_second", "step_seconds",   "bubble",
	                                     "bottleneck", "longest_sequence",  "speed_of_light", "tiers",
	                                     "stages"};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		assert_non_null(json_object_get(json, fields[i]));
	assert_true(json_number_value(json_object_get(json, "tokens_per_second")) > 0);
	json_decref(json);
	run_free(&first);
	run_free(&second);
	scratch_close(&scratch);
}

/* Whatever is printed, on one core and on all that there are. */
static void check_cores(const struct scratch *scratch, const char *line)
{
	cpu_set_t all, one;
	check_ok(sched_getaffinity(0, sizeof all, &all));
	CPU_ZERO(&one);
	for (size_t core = 0; !CPU_COUNT(&one); core++)
		if (CPU_ISSET(core, &all))
			CPU_SET(core, &one);
	struct ran many = run_line(scratch, "%s", line);
	check_ok(sched_setaffinity(0, sizeof one, &one));
	struct ran alone = run_line(scratch, "%s", line);
	check_ok(sched_setaffinity(0, sizeof all, &all));
	assert_int_equal(many.status, alone.status);
	assert_string_equal(many.out, alone.out);
	assert_string_equal(many.err, alone.err);
	assert_true(strlen(many.out) > 100);
	run_free(&many);
	run_free(&alone);
}

static void test_plan_prints_the_same_bytes_on_any_number_of_cores(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_cores(&scratch, path_of("plan %s/run.yaml --hardware rtx4090x8 --gradient_accumulation_steps 5000", scratch.dir));
	check_cores(&scratch, path_of("plan %s/run.yaml --hardware rtx4090x8 --gradient_accumulation_steps 2048 --compare", scratch.dir));
	check_cores(&scratch, path_of("plan %s/run.yaml --hardware rtx4090x8 --max_vram 64KiB", scratch.dir));
	scratch_close(&scratch);
}

static void test_plan_says_the_memory_that_the_run_reserves(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran plan = run_line(&scratch, "plan %s/run.yaml --max_ram 2GiB --max_vram 64MiB --device cpu:2 --json", scratch.dir);
	struct ran train = run_line(&scratch, "train %s/run.yaml --max_ram 2GiB --max_vram 64MiB --device cpu:2 --json", scratch.dir);
	json_t *said = result_of(&plan), *done = result_of(&train);
	int64_t planned = bytes_at(done, "plan", "peak_bytes", "ram");
	assert_int_equal(bytes_at(said, "tiers", "ram", "used_bytes"), planned);
	assert_true(json_number_value(json_object_get(json_object_get(done, "plan"), "tokens_per_second")) > 0);
	json_decref(said);
	json_decref(done);
	run_free(&plan);
	run_free(&train);
	scratch_close(&scratch);
}

static void test_plan_that_does_not_fit_says_what_would(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --max_vram 64KiB --json", scratch.dir);
	json_t *json = answer_of(&ran, 1);
	assert_true(json_is_false(json_object_get(json, "fits")));
	assert_non_null(json_object_get(json_object_get(json, "mend"), "change"));
	json_decref(json);
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/run.yaml --hardware nosuchbox", scratch.dir);
	check_failed(&ran, "no hardware profile 'nosuchbox'; there are: a100, a4000, a6000, a800x8, h100x1, l40s");
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --gpus 9", scratch.dir);
	check_failed(&ran, "--gpus: 9, but rtx4090x8 has 8 devices; lower it");
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --device sim:rtx4090x8", scratch.dir);
	check_failed(&ran, "is a simulated machine");
	run_free(&ran);
	scratch_close(&scratch);
}

/* An 8B's config.json: its 104.7 GiB of weights and state are what plan is asked of most. */
#define EIGHT                                                                                                                              \
	"{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 14336, "     \
	"\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256, "                     \
	"\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"hidden_act\": \"silu\"}"

static void says(const struct ran *ran, int status, const char *part)
{
	if (ran->status != status || !strstr(ran->out, part))
		fail_msg("exit %d, '%s' is not in: %s%s", ran->status, part, ran->out, ran->err);
}

static void test_plan_of_a_large_model_says_each_change_that_is_enough(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	write_text(path_of("%s/eight.yaml", scratch.dir), path_of("config_name: %s/config.json\nmax_length: 2048\n", scratch.dir));
	struct ran ran = run_line(&scratch, "plan %s/eight.yaml --hardware rtx4090x8 --gpus 1 --max_ram 60GiB", scratch.dir);
	says(&ran, 1, "GiB of host memory (weights and optimizer 104.7) and may have 60.0; raise max_ram, spill to NVMe, or train fewer");
	says(&ran, 1, "spill: auto, nvme_dirs and max_nvme: ");
	says(&ran, 1, "would fit    with a LoRA adapter instead of all weights, use_peft: true (other results): ");
	says(&ran, 1, "          or max_ram: 1");
	assert_null(strstr(ran.out, "CPU device"));
	run_free(&ran);
	/* neither memory is enough: two changes together */
	ran = run_line(&scratch, "plan %s/eight.yaml --hardware rtx4090x8 --gpus 1 --max_ram 60GiB --max_vram 6GiB --max_length 8192",
	               scratch.dir);
	says(&ran, 1, "spill: auto, nvme_dirs and max_nvme: 60GiB, per_device_train_batch_size: ");
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/eight.yaml --hardware rtx4090x8 --gpus 1 --per_device_train_batch_size 1", scratch.dir);
	says(&ran, 0, "fits         ");
	says(&ran, 0, "bottleneck   ");
	says(&ran, 0, "(layer 0 is the embedding, 33 the head)");
	says(&ran, 0, "longest      8192 tokens (the model's context; memory would hold ");
	assert_null(strstr(ran.out, "warning"));
	run_free(&ran);
	ran = run_line(&scratch, "plan --model_name_or_path %s --train_file %s/rows.jsonl --hardware rtx4090x8 --use_peft true",
	               scratch.dir, scratch.dir);
	says(&ran, 0, "rows         taken to be max_length tokens each");
	assert_non_null(strstr(ran.err, "no weights there: shapes from config.json"));
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/eight.yaml --hardware rtx4090x8 --per_device_train_batch_size 1 --max_length 9000", scratch.dir);
	says(&ran, 0, "warning      max_length 9000 is above the 8192 positions");
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/eight.yaml --hardware rtx4090x1 --use_peft true --dtype bfloat16 --max_length 2000000",
	               scratch.dir);
	says(&ran, 1, " and max_length: "); /* far less than was asked, and of use */
	run_free(&ran);
	scratch_close(&scratch);
}

/* An answer or a refusal in one line, whatever the keys. */
static void answers(const struct scratch *scratch, const char *flags)
{
	struct ran ran = run_line(scratch, "plan --config_name %s/config.json --hardware rtx4090x2 --max_steps 4 %s", scratch->dir, flags);
	size_t lines = 0;
	for (const char *at = ran.err; *at; at++)
		lines += *at == '\n';
	if (ran.status < 0 || ran.status > 2 || strstr(ran.err, "internal error") || lines > 1)
		fail_msg("%s: exit %d, %s%s", flags, ran.status, ran.out, ran.err);
	run_free(&ran);
}

static void test_plan_answers_whatever_the_numbers(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir),
	           "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": "
	           "128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 512, "
	           "\"max_position_embeddings\": 16777216}");
	for (size_t i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		if (key->type != KEY_INTEGER || !(key->verbs & config_verb_bit("plan")))
			continue;
		int micro_batches = !strcmp(key->name, "gradient_accumulation_steps"); /* a million take half a minute to lay out */
		const double values[] = {key->least - 1, key->least, micro_batches ? 4096 : key->most, key->most + 1};
		for (int v = 0; v < 4; v++)
			answers(&scratch, path_of("--%s %.0f", key->name, values[v]));
	}
	answers(&scratch, "--max_length 2097152 --per_device_train_batch_size 1048576");
	answers(&scratch, "--max_length 8388608 --per_device_train_batch_size 262144");
	answers(&scratch, "--max_length 16777216 --per_device_train_batch_size 127 --round_micro_batches 1024 "
	                  "--gradient_accumulation_steps 1024");
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	answers(&scratch, "--max_length 16777216 --per_device_train_batch_size 127 --gradient_accumulation_steps 64 --schedule gpipe");
	answers(&scratch, "--max_length 2048 --per_device_train_batch_size 1048575 --spill auto --max_nvme 1TB --nvme_dirs /tmp");
	answers(&scratch, "--max_length 2048 --per_device_train_batch_size 1048575 --schedule zb-h2 --gradient_accumulation_steps 64");
	scratch_close(&scratch);
}

static void lacks(const struct ran *ran, const char *part)
{
	if (strstr(ran->out, part))
		fail_msg("'%s' is in: %s", part, ran->out);
}

static void test_the_longest_sequence_is_of_this_configuration(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	static const char flags[] = "--hardware rtx4090x1 --use_peft true --gradient_accumulation_steps 4";
	struct ran ran = run_line(&scratch, "plan --config_name %s/config.json %s", scratch.dir, flags);
	says(&ran, 0, " at per_device_train_batch_size: 1\n");
	const char *at = strstr(ran.out, "memory would hold ");
	assert_non_null(at);
	long long longest = strtoll(at + strlen("memory would hold "), NULL, 10);
	run_free(&ran);
	for (int more = 0; more < 2; more++) {
		ran = run_line(&scratch, "plan --config_name %s/config.json %s --per_device_train_batch_size 1 --max_length %lld",
		               scratch.dir, flags, longest + more * (longest / 32));
		says(&ran, more, more ? "does not fit " : "fits         ");
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Shorter rows, too. */
static void test_a_run_fits_in_the_memory_that_a_refusal_names(void **state)
{
	(void)state;
	static const char line[] = "plan --config_name %s/config.json --hardware a800x8 --gpus 2 --max_length %d --max_ram %lld "
	                           "--gradient_accumulation_steps 2 --json";
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	struct ran ran = run_line(&scratch, line, scratch.dir, 4096, 1LL << 30);
	json_t *json = answer_of(&ran, 1);
	const json_t *needed = json_object_get(json, "max_ram_needed_bytes");
	assert_true(json_is_integer(needed));
	long long bytes = json_integer_value(needed);
	json_decref(json);
	run_free(&ran);
	for (int length = 4096; length > 256; length /= 4) {
		ran = run_line(&scratch, line, scratch.dir, length, bytes);
		json_decref(result_of(&ran));
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Each of two devices has a step of its own, and the two steps run side by side. */
static void test_joined_steps_of_one_stage_are_as_fast_as_their_devices(void **state)
{
	(void)state;
	struct scratch scratch;
	double tokens[2];
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	for (int two = 0; two < 2; two++) {
		struct ran ran = run_line(&scratch,
		                          "plan --config_name %s/config.json --hardware a800x8 --gpus %d --use_peft true --max_length 4096 "
		                          "--per_device_train_batch_size 1 --optimizer_staleness 1 --json",
		                          scratch.dir, 1 + two);
		json_t *json = result_of(&ran);
		tokens[two] = json_number_value(json_object_get(json, "tokens_per_second"));
		json_decref(json);
		run_free(&ran);
	}
	if (!(tokens[1] > 1.5 * tokens[0] && tokens[1] < 2.01 * tokens[0]))
		fail_msg("one device: %.1f tokens/s, two: %.1f", tokens[0], tokens[1]);
	/* a step on one device begins while the step before it is still to be computed on the other */
	struct ran ran = run_line(&scratch,
	                          "plan --config_name %s/config.json --hardware rtx4090 --gpus 2 --use_peft true --max_length 2048 "
	                          "--per_device_train_batch_size 1 --optimizer_staleness 1 --spill weights --nvme_dirs /tmp "
	                          "--max_nvme 1TiB --json",
	                          scratch.dir);
	json_t *json = result_of(&ran);
	double idle = json_number_value(json_object_get(json, "bubble"));
	assert_true(idle > 0 && idle < 1);
	json_decref(json);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_refusals_name_the_limit_that_is_short(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	struct ran ran = run_line(&scratch, "plan --config_name %s/config.json --hardware rtx4090x1 --use_peft true --max_length 120000",
	                          scratch.dir);
	says(&ran, 1, "does not fit device: the device's 23964.0 MiB cannot hold ");
	lacks(&ran, "max_ram");
	lacks(&ran, "raise");
	run_free(&ran);
	ran = run_line(&scratch, "plan --config_name %s/hf --device cpu:1 --max_ram 18MiB --max_length 64 --per_device_train_batch_size 64",
	               scratch.dir);
	assert_int_equal(ran.status, 1);
	lacks(&ran, "raise max_vram");
	run_free(&ran);
	ran = run_line(&scratch,
	               "plan --config_name %s/config.json --hardware rtx4090x2 --use_peft true --max_length 8192 --compare "
	               "--gradient_accumulation_steps 4",
	               scratch.dir);
	says(&ran, 0, "zb-h1                  does not fit\n");
	size_t reasons = 0;
	for (const char *at = ran.out; (at = strstr(at, "cannot hold")); at++)
		reasons++;
	assert_int_equal(reasons, 1);
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --device cpu:1 --max_vram 64KiB", scratch.dir);
	check_failed(&ran, "; roundhouse plan with the same configuration lists what would fit");
	assert_null(strstr(ran.err, "no prediction"));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_plan_needs_no_data_and_tells_what_drives_bear(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	struct ran ran = run_line(&scratch, "plan examples/lora-24gb.yaml --model_name_or_path %s --hardware rtx4090x1", scratch.dir);
	says(&ran, 0, "all of them trained (no train_file there)\n");
	assert_non_null(strstr(ran.err, "train_file: 'train.jsonl': no such file or directory: planned without it\n"));
	run_free(&ran);
	ran = run_line(&scratch, "plan examples/lora-24gb.yaml --hardware rtx4090x1");
	check_failed(&ran, "for plan, one with a config.json is enough");
	run_free(&ran);
	ran = run_line(&scratch,
	               "plan --config_name %s/config.json --hardware rtx4090x1 --spill auto --max_nvme 1TB --nvme_dirs /tmp "
	               "--max_steps 1000 --max_length 2048 --gradient_accumulation_steps 4 --per_device_train_batch_size 4",
	               scratch.dir);
	says(&ran, 0, " GiB written a step\n");
	says(&ran, 0, "whole run    1000 steps, ");
	says(&ran, 0, " GiB written to NVMe\n");
	says(&ran, 0, "bottleneck   nvme");
	says(&ran, 0, "helps most   ");
	run_free(&ran);
	ran = run_line(&scratch, "plan --config_name %s/config.json --hardware rtx4090x1 --use_peft true --chat_template llama-3",
	               scratch.dir);
	check_failed(&ran, "chat_template: ");
	run_free(&ran);
	scratch_close(&scratch);
}

/* The recipe as it stands, on a model and rows that are here. */
static void test_the_recipe_for_one_card_fits_it(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/config.json", scratch.dir), EIGHT);
	struct ran ran = run_line(&scratch,
	                          "plan examples/lora-24gb.yaml --model_name_or_path null --config_name %s/config.json --train_file "
	                          "null --hardware rtx4090x1",
	                          scratch.dir);
	says(&ran, 0, "fits         ");
	run_free(&ran);
	ran = run_line(
	        &scratch,
	        "train examples/lora-24gb.yaml --model_name_or_path %s/hf --train_file %s/rows.jsonl --output_dir %s/out --device "
	        "cpu:1 --max_vram 64MiB --eval_split null --eval_strategy no --assistant_only_loss null --max_length 64 --max_steps 1",
	        scratch.dir, scratch.dir, scratch.dir);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	scratch_close(&scratch);
}

static double speed_with(const struct scratch *scratch, const char *flags)
{
	struct ran ran;
	run_start(scratch, path_of("plan %s/run.yaml --hardware rtx4090x8 --gpus 1 --dtype bfloat16 --json %s", scratch->dir, flags), 0,
	          &ran);
	run_wait(&ran);
	json_t *json = result_of(&ran);
	double speed = json_number_value(json_object_get(json, "tokens_per_second"));
	assert_true(json_number_value(json_object_get(json, "speed_of_light")) < 1);
	json_decref(json);
	run_free(&ran);
	return speed;
}

static void test_plan_knows_what_products_are_made_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	assert_true(speed_with(&scratch, "") > 0);
	assert_true(speed_with(&scratch, "--accumulation fp16") > 0);
	assert_true(speed_with(&scratch, "--fp8 true") > 0);
	struct ran ran = run_line(&scratch, "plan %s/run.yaml --hardware a800x8 --dtype bfloat16 --fp8 true", scratch.dir);
	check_failed(&ran, "peaks has no f8");
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_plan_checks_the_steps_commands(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	struct ran ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --check", scratch.dir);
	says(&ran, 0, "waits: each finds what it needs, in whatever order a run takes\n");
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --gpus 2 --schedule paci --use_peft false --check", scratch.dir);
	says(&ran, 0, "waits: each finds what it needs, in whatever order a run takes\n");
	run_free(&ran);
	ran = run_line(&scratch, "plan %s/run.yaml --hardware rtx4090x8 --optimizer_staleness 1 --check --json", scratch.dir);
	json_t *json = result_of(&ran), *check = json_object_get(json, "check");
	assert_true(json_integer_value(json_object_get(check, "commands")) > 100);
	assert_true(json_integer_value(json_object_get(check, "waits")) > 10);
	assert_true(json_is_null(json_object_get(check, "fault")));
	json_decref(json);
	run_free(&ran);
	scratch_close(&scratch);
}

/* Models of other tasks than next tokens, whose rows nobody has read. */
static void test_plan_of_a_classifier_needs_no_data(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	struct ran texts = run_line(&scratch, "plan examples/models/bert-large.yaml --hardware rtx4090x1 --json");
	struct ran images = run_line(&scratch, "plan examples/models/vit-large.yaml --hardware rtx4090x1 --json");
	json_t *of_texts = result_of(&texts), *of_images = result_of(&images);
	assert_true(json_integer_value(json_object_get(of_texts, "longest_sequence")) > 512);
	assert_int_equal(json_integer_value(json_object_get(of_images, "longest_sequence")), 0);
	double seconds = json_real_value(json_object_get(of_images, "step_seconds"));
	double speed = json_real_value(json_object_get(of_images, "tokens_per_second"));
	assert_true(fabs(seconds * speed / (256 * 197) - 1) < 1e-6); /* tokens of 256 images */
	json_decref(of_texts);
	json_decref(of_images);
	run_free(&texts);
	run_free(&images);
	scratch_close(&scratch);
}

/* One plan of an example: it fits, within what the machine has, or says what would. */
static void check_example(const struct scratch *scratch, const char *model, const char *hardware, int fits)
{
	struct ran ran = run_line(scratch, "plan examples/models/%s.yaml --hardware %s --json", model, hardware);
	json_t *json = answer_of(&ran, !fits);
	if (json_is_true(json_object_get(json, "fits")) != fits)
		fail_msg("%s on %s: %s", model, hardware, ran.err);
	if (fits) {
		static const char *const tiers[] = {"vram", "ram"};
		for (int i = 0; i < 2; i++) {
			int64_t used = bytes_at(json, "tiers", tiers[i], "used_bytes");
			assert_true(used > 0 && used <= bytes_at(json, "tiers", tiers[i], "budget_bytes"));
		}
		assert_true(json_real_value(json_object_get(json, "tokens_per_second")) > 0);
	} else {
		assert_true(json_array_size(json_object_get(json, "mends")) >= 1);
	}
	json_decref(json);
	run_free(&ran);
}

static void test_every_example_is_planned(void **state)
{
	(void)state;
	static const struct {
		const char *model;
		int fits_desktop; /* 62 GiB of host memory and one GPU */
	} cases[] = {{"bert-large", 1},        {"gemma-3-27b", 0},     {"gpt-oss-20b", 1},     {"gpt2-medium", 1},
	             {"llama-3.1-70b", 0},     {"llama-3.1-8b", 0},    {"mistral-7b", 0},      {"qwen3-1.7b", 1},
	             {"qwen3-32b", 0},         {"qwen3-235b-a22b", 0}, {"vit-large", 1},       {"qwen3-8b", 1},
	             {"qwen3-30b-a3b", 1},     {"qwen3.5-9b", 1},      {"qwen3.5-27b", 1},     {"qwen3.5-35b-a3b", 1},
	             {"qwen3.5-122b-a10b", 0}, {"gemma-4-31b", 1},     {"gemma-4-26b-a4b", 1}, {"qwen3-next-80b-a3b", 1},
	             {"gemma-4-e2b", 1},       {"gemma-4-e4b", 1}};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (i % 3 == 2 || getenv("RH_LONG")) /* a long run has them all */
			check_example(&scratch, cases[i].model, "rtx4090x8", 1);
		check_example(&scratch, cases[i].model, "rtx4090x1", cases[i].fits_desktop);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_example_is_planned),
	        cmocka_unit_test(test_plan_twice_prints_the_same_bytes),
	        cmocka_unit_test(test_plan_prints_the_same_bytes_on_any_number_of_cores),
	        cmocka_unit_test(test_plan_says_the_memory_that_the_run_reserves),
	        cmocka_unit_test(test_plan_that_does_not_fit_says_what_would),
	        cmocka_unit_test(test_plan_of_a_large_model_says_each_change_that_is_enough),
	        cmocka_unit_test(test_plan_answers_whatever_the_numbers),
	        cmocka_unit_test(test_the_longest_sequence_is_of_this_configuration),
	        cmocka_unit_test(test_a_run_fits_in_the_memory_that_a_refusal_names),
	        cmocka_unit_test(test_joined_steps_of_one_stage_are_as_fast_as_their_devices),
	        cmocka_unit_test(test_refusals_name_the_limit_that_is_short),
	        cmocka_unit_test(test_plan_needs_no_data_and_tells_what_drives_bear),
	        cmocka_unit_test(test_the_recipe_for_one_card_fits_it),
	        cmocka_unit_test(test_plan_knows_what_products_are_made_of),
	        cmocka_unit_test(test_plan_checks_the_steps_commands),
	        cmocka_unit_test(test_plan_of_a_classifier_needs_no_data),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
