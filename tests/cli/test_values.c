/* Hostile values of every key for every verb: taken as a number of the key's range, or refused in a line that names the key. What is
 * taken ends in no crash. */
#include "cli/good.h"

#include "config/config_internal.h"
#include "core/log.h"

#include <math.h>

static const char *const verbs[] = {"train", "plan", "doctor", "generate", "eval", "keys", "inspect", "chat", "merge", "export", "join"};

static const char *const hostile[] = {"-1",
                                      "0",
                                      "1",
                                      "-0",
                                      "0.5",
                                      "2",
                                      "1e-10",
                                      "1e-320",
                                      "1e30",
                                      "1e308",
                                      "1e999",
                                      "nan",
                                      ".inf",
                                      "-inf",
                                      "2147483648",
                                      "4294967298",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "18446744073709551616",
                                      "0x10",
                                      "[]",
                                      "x"};

enum { VERBS = sizeof verbs / sizeof *verbs, HOSTILE = sizeof hostile / sizeof *hostile, WORDS_MAX = 48 };

/* What a verb needs beside its configuration file. */
static const char *needs_of(const char *verb)
{
	static const char *const needs[][2] = {{"generate", "--prompt the --max_new_tokens 3"},
	                                       {"chat", "--chat_template chatml --max_new_tokens 3"},
	                                       {"eval", "--validation_file @/rows.jsonl"},
	                                       {"merge", "--adapter_name_or_path @/adapter --output_dir @/out"},
	                                       {"export", "--outfile @/out.gguf"},
	                                       {"doctor", "--device cpu:1 --measure_seconds 1"},
	                                       {"keys", "--link_identity @/key.pem"},
	                                       {"join", "--parts @/adapter --output_dir @/out"}};
	for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
		if (!strcmp(needs[i][0], verb))
			return needs[i][1];
	return "";
}

/* What gives a key an effect, by the beginning of its name. */
static const char *context_of(const char *key)
{
#define BOXES "--boxes 2 --box 1 --link_above 127.0.0.1:9 --link_give_up 0.2 "
	static const char *const contexts[][2] = {
	        {"fluidpipe_idle", BOXES "--mode fluidpipe --fluidpipe_idle_sampler random"},
	        {"fluidpipe", BOXES "--mode fluidpipe --fluidpipe_recipe FP-DB --fluidpipe_top_k 3"},
	        {"paci", BOXES "--mode paci"},
	        {"admission", BOXES "--mode paci"},
	        {"max_version", BOXES "--mode paci"},
	        {"box", BOXES "--mode sync-pp"},
	        {"link", BOXES "--mode sync-pp"},
	        {"lora", "--use_peft true"},
	        {"max_nvme", "--spill optimizer --nvme_dirs @ --max_nvme 100MiB"},
	        {"accumulation_chunk", "--accumulation fp16"},
	        {"early", "--eval_split 0.5 --eval_strategy epoch --save_strategy epoch --load_best_model_at_end true"}};
	for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++)
		if (!strncmp(contexts[i][0], key, strlen(contexts[i][0])))
			return contexts[i][1];
	return "";
}

static int is_number(const struct config_key *key)
{
	enum config_type type = key->type == KEY_LIST ? key->items : key->type;
	return type == KEY_INTEGER || type == KEY_SEED || type == KEY_REAL || type == KEY_STEPS || type == KEY_SIZE || type == KEY_CUTS;
}

/* Appends the words of `from`, a flag and its value each, but for those whose key is among `words`. */
static void add_words(const char *from, char *words, size_t bytes)
{
	char copy[1024], *rest = copy;
	snprintf(copy, sizeof copy, "%s", from);
	for (char *flag; (flag = strsep(&rest, " "));) {
		char *value = strsep(&rest, " "), name[80];
		if (!*flag)
			continue;
		snprintf(name, sizeof name, " %s", flag);
		const char *at = strstr(words, name);
		if (!at || (at[strlen(name)] != '=' && at[strlen(name)] != ' '))
			snprintf(words + strlen(words), bytes - strlen(words), " %s %s", flag, value);
	}
}

/* "@/run.yaml --key=value" and what else this verb and this key need. */
static void line_of(const struct scratch *scratch, const char *verb, const char *key, const char *value, char *out, size_t bytes)
{
	char line[2048];
	unsigned bit = config_verb_bit(verb);
	int has_file = !(bit & (VERB_DOCTOR | VERB_KEYS | VERB_JOIN));
	snprintf(line, sizeof line, "%s --%s=%s", has_file ? "@/run.yaml" : "", key, value);
	if (bit & VERB_RUNS)
		add_words(context_of(key), line, sizeof line);
	add_words(needs_of(verb), line, sizeof line);
	fill_in(scratch, line, out, bytes);
}

static int load_line(const char *verb, const char *line, struct rh_config *config)
{
	char copy[2048], *rest = copy, *argv[WORDS_MAX];
	int argc = 0;
	snprintf(copy, sizeof copy, "%s", line);
	for (char *word; (word = strsep(&rest, " "));) {
		assert_true(argc < WORDS_MAX);
		if (*word)
			argv[argc++] = word;
	}
	return rh_config_load(verb, argc, argv, NULL, config);
}

static int in_range(const struct config_key *key, double value)
{
	return isfinite(value) && value >= key->least && value <= key->most;
}

/* The numbers that a configuration holds of a key; 0 stands for one that was not given. */
static void check_field(const struct config_key *key, const struct rh_config *config, const char *line)
{
	const void *field = (const char *)config + key->offset;
	int is_whole = key->type == KEY_INTEGER || key->type == KEY_SIZE || key->type == KEY_SEED;
	double value = is_whole                                         ? (double)*(const int64_t *)field
	               : key->type == KEY_LIST || key->type == KEY_CUTS ? 0
	                                                                : *(const double *)field;
	if (value != 0 && !in_range(key, value))
		fail_msg("%s holds %g after: %s", key->name, value, line);
	const struct rh_list *list = field;
	for (size_t i = 0; key->type == KEY_LIST && i < list->count; i++)
		if (!in_range(key, strtod(list->item[i], NULL)))
			fail_msg("%s holds %s after: %s", key->name, list->item[i], line);
}

static void test_every_range_is_finite(void **state)
{
	(void)state;
	for (size_t i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		if (!is_number(key))
			continue;
		if (!isfinite(key->least) || !isfinite(key->most) || !(key->most > key->least))
			fail_msg("%s: from %g to %g", key->name, key->least, key->most);
	}
}

/* Refused, the line names the key, or another one that the verb asks for first. */
static int is_named(const char *line, const char *key)
{
	static const char *const others[] = {"box", "parts", "lora_target_modules", "output_dir"};
	int named = strstr(line, key) != NULL;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		named |= !strncmp(key, others[i], strlen(others[i]));
	return named && !strchr(line, '\n');
}

static void test_hostile_values_are_numbers_of_the_range_or_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	int taken = 0, refusals = 0;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/adapter", scratch.dir)));
	write_text(path_of("%s/adapter/adapter_config.json", scratch.dir), "{}");
	rh_log_quiet(1);
	for (size_t i = 0; i < config_key_count; i++)
		for (size_t at = 0; at < VERBS * HOSTILE; at++) {
			const struct config_key *key = &config_keys[i];
			const char *verb = verbs[at / HOSTILE];
			char line[2048];
			struct rh_config config;
			if (!is_number(key) || !(key->verbs & config_verb_bit(verb)))
				continue;
			line_of(&scratch, verb, key->name, hostile[at % HOSTILE], line, sizeof line);
			int rc = load_line(verb, line, &config);
			taken += !rc;
			refusals += rc < 0;
			if (rc < 0 && !is_named(rh_error(rc), key->name))
				fail_msg("%s %s: %s", verb, line, rh_error(rc));
			if (!rc)
				check_field(key, &config, line);
			rh_config_free(&config);
		}
	printf("%d taken, %d refused\n", taken, refusals);
	assert_true(taken > 500 && refusals > 500);
	scratch_close(&scratch);
}

/* A value that does not count, as another origin's does or as the verb has no use for the key, is still to be one. */
static void test_values_that_do_not_count_are_checked(void **state)
{
	(void)state;
	static const char *const lines[] = {"eval_split: nan", "data_weights: -1", "learning_rate: 1e308", "box_cuts: [0]"};
	struct scratch scratch;
	make_good(&scratch);
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		char key[32];
		snprintf(key, sizeof key, "%.*s", (int)strcspn(lines[i], ":"), lines[i]);
		write_text(path_of("%s/bad.yaml", scratch.dir),
		           path_of("model_name_or_path: %s/hf\nvalidation_file: %s/rows.jsonl\nmax_length: 64\n%s\n", scratch.dir,
		                   scratch.dir, lines[i]));
		refused(&scratch, "eval @/bad.yaml", key);
	}
	refused(&scratch, "train @/bad.yaml --box_cuts 1", "box_cuts");
	scratch_close(&scratch);
}

/* Waits for some seconds, then asks the run to end. 1: it was asked. */
static int end_run(struct ran *ran)
{
	enum { TENTHS = 300, ASKED_AT = 50 };
	int tenth = 0;
	for (; tenth < TENTHS; tenth++) {
		siginfo_t info = {0};
		assert_int_equal(waitid(P_PID, (id_t)ran->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
		if (info.si_pid)
			break;
		usleep(tenth < 20 ? 5000 : 100000);
		if (tenth == ASKED_AT)
			kill(ran->pid, SIGTERM);
	}
	kill(ran->pid, SIGKILL);
	run_wait(ran);
	return tenth > ASKED_AT;
}

/* Programs run in the scratch directory, as paths are hostile too. */
static char *run_dir;

static void go_there(void)
{
	close(0);
	if (chdir(run_dir))
		_exit(125);
}

/* Runs what the configuration takes. */
static int run_taken(const struct scratch *scratch, const char *verb, const struct config_key *key, const char *value)
{
	char line[2048], full[2048];
	struct rh_config config;
	struct ran ran;
	line_of(scratch, verb, key->name, value, line, sizeof line);
	int rc = load_line(verb, line, &config);
	rh_config_free(&config);
	if (rc)
		return 0;
	snprintf(full, sizeof full, "%s %s", verb, line);
	run_start(scratch, full, 0, &ran);
	int asked = end_run(&ran), is_ended = asked && strcmp(verb, "train") && ran.status == 128 + SIGTERM;
	if ((ran.status > 2 && !is_ended) || strstr(ran.err, "internal error"))
		fail_msg("exit %d of %s: %s", ran.status, full, ran.err);
	if (ran.status && !is_ended && !*ran.err && !*ran.out)
		fail_msg("exit %d without a word of %s", ran.status, full);
	run_free(&ran);
	static const char *const left[] = {"out", "out.gguf", "key.pem"};
	for (size_t i = 0; i < sizeof left / sizeof *left; i++)
		if (rh_dir_exists(path_of("%s/%s", scratch->dir, left[i])))
			check_ok(rh_dir_remove(path_of("%s/%s", scratch->dir, left[i])));
		else
			(void)unlink(path_of("%s/%s", scratch->dir, left[i]));
	return 1;
}

/* RH_LONG: all verbs and all keys; else numbers of plan, which looks at all that train does but the weights. */
static void test_what_is_taken_ends_in_no_crash(void **state)
{
	(void)state;
	int whole = getenv("RH_LONG") != NULL, runs = 0;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --use_peft true --output_dir %s/adapter", scratch.dir, scratch.dir);
	rh_log_quiet(1);
	char *build = realpath(getenv("RH_BUILD") ? getenv("RH_BUILD") : "build/release", NULL);
	setenv("RH_BUILD", build, 1);
	setenv("HOME", scratch.dir, 1);
	unsetenv("XDG_CONFIG_HOME");
	free(build);
	run_dir = scratch.dir;
	run_prepare = go_there;
	for (size_t i = 0; i < config_key_count; i++)
		for (size_t at = 0; at < VERBS * HOSTILE; at++) {
			const struct config_key *key = &config_keys[i];
			const char *verb = verbs[at / HOSTILE];
			if (!(key->verbs & config_verb_bit(verb)) || strchr(key->name, '*'))
				continue;
			if (whole || (is_number(key) && !strcmp(verb, "plan")))
				runs += run_taken(&scratch, verb, key, hostile[at % HOSTILE]);
		}
	run_prepare = NULL;
	printf("%d runs\n", runs);
	assert_true(runs > (whole ? 1500 : 150));
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_range_is_finite),
	        cmocka_unit_test(test_hostile_values_are_numbers_of_the_range_or_refused),
	        cmocka_unit_test(test_values_that_do_not_count_are_checked),
	        cmocka_unit_test(test_what_is_taken_ends_in_no_crash),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
