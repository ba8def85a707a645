/* roundhouse VERB CONFIG.yaml [--key value]...: only dispatches. Exit status: 0 done, 1 it failed or
 * the answer is no, 2 it was asked for wrongly. */
#include "cli/verbs.h"
#include "core/fs.h"
#include "core/text.h"
#include "core/version.h"
#include "core/wrap.h"
#include "machine/machine.h"
#include "schedule/schedule.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct {
	const char *name, *meaning;
	int (*run)(const struct rh_config *);
	int (*run_words)(int argc, char **argv); /* in its place: a verb without a configuration */
} verbs[] = {
        {"train", "fine-tune a model on rows of text or conversations: a LoRA adapter, or all weights", verb_train, NULL},
        {"plan", "what a run will take and what limits it, on this machine or another; nothing is loaded", verb_plan, NULL},
        {"stress", "the longest sequence that this machine, or another one, can train a model on, and what limits it", verb_stress, NULL},
        {"inspect", "the data as the model will see them, what of them is trained, and their faults; no weights are read", verb_inspect,
         NULL},
        {"verify", "whether a run computes the gradients that it should: a step beside one on one device that holds all", verb_verify,
         NULL},
        {"eval", "loss and accuracy of a model, with or without an adapter, on rows", verb_eval, NULL},
        {"generate", "continue a prompt", verb_generate, NULL},
        {"chat", "a conversation with a model, with or without an adapter, in the terminal", verb_chat, NULL},
        {"merge", "an adapter merged into its model: a Hugging Face directory or a GGUF file", verb_merge, NULL},
        {"export", "a model, or an adapter alone, as a GGUF file that llama.cpp reads", verb_export, NULL},
        {"join", "one model out of the parts that several boxes have trained", verb_join, NULL},
        {"top", "what a run does now: step, loss, speed, where the time goes, memory, GPUs; over ssh too", NULL, verb_top},
        {"report", "what a run did, or several side by side, on one HTML page", NULL, verb_report},
        {"doctor", "measure this machine, say what is wrong with it, save it as a hardware profile", verb_doctor, NULL},
        {"convert", "another trainer's configuration (Axolotl, LLaMA-Factory, TRL) as one of this program", NULL, verb_convert},
        {"keys", "make this box's key for links to other boxes, and print the hash by which they know it", verb_keys, NULL},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

/* ---- before any library begins: with too little address space the allocator's own start crashes, which tells nobody why ---- */

enum { LEAST_MIB = 128 }; /* program and libraries map 70 */

static void check_address_space(int argc, char **argv, char **environment)
{
	static const char line[] = "roundhouse: the limit on address space (ulimit -v) is below 128 MiB: too little to start; raise it\n";
	struct rlimit limit;
	(void)argc, (void)argv, (void)environment;
	if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >> 20 >= LEAST_MIB)
		return;
	(void)!write(STDERR_FILENO, line, strlen(line));
	_exit(1);
}

/* Runs before the constructors of all libraries; only an executable may have such a section. */
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(int, char **, char **) = check_address_space;

/* ---- the verbs ---- */

static void usage(FILE *out)
{
	char line[256];
	fprintf(out, "usage: roundhouse VERB [CONFIG.yaml] [--key value]...\n\n");
	for (int i = 0; i < VERBS; i++) {
		snprintf(line, sizeof line, "  %-10s %s", verbs[i].name, verbs[i].meaning);
		rh_put_line(out, line);
	}
	fputc('\n', out);
	rh_put_line(out,
	            "roundhouse VERB --help lists the keys of a verb. --json prints its result as one line of JSON. roundhouse --version "
	            "prints its version.\n"
	            "Exit status: 0 done (also a run that Ctrl-C or SIGTERM ended, once its checkpoint was saved), 1 it failed, or does "
	            "not fit (plan), 2 it was asked for wrongly.");
}

static int help(const char *verb)
{
	struct rh_text text = {0};
	int rc = rh_config_help(verb, rh_schedule_names(), &text);
	if (!rc)
		rh_put_line(stdout, text.bytes);
	rh_text_free(&text);
	return rc;
}

static void tell_fault(const char *verb, const char *fault)
{
	struct rh_text line = {0};
	if (!rh_text_printf(&line, "roundhouse %s: %s", verb, fault))
		rh_put_line(stderr, line.bytes);
	else
		fprintf(stderr, "roundhouse %s: %s\n", verb, fault);
	rh_text_free(&line);
}

/* Results that cannot be written are no results: the disk is full, or nobody reads them. */
static int finish_output(const char *verb, int status)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	if (!status)
		tell_fault(verb, rh_error(rh_fail(-EIO, "standard output: cannot write: %s", strerror(errno ? errno : EIO))));
	return status ? status : 1;
}

static int run_verb(const char *verb, int argc, char **argv)
{
	int which = 0;
	while (which < VERBS && strcmp(verbs[which].name, verb))
		which++;
	if (which == VERBS) {
		fprintf(stderr, "roundhouse: there is no verb '%s'; the verbs are", verb);
		for (int i = 0; i < VERBS; i++)
			fprintf(stderr, "%s %s", i ? "," : "", verbs[i].name);
		fputs("\n", stderr);
		return 2;
	}
	if (verbs[which].run_words) {
		int failed = verbs[which].run_words(argc, argv);
		if (failed < 0)
			tell_fault(verb, rh_error(failed));
		return failed ? 2 : 0;
	}
	struct rh_config config = {0};
	int rc =
	        rh_config_load(verb, argc, argv, verbs[which].run == verb_stress ? verb_stress_device : rh_machine_default_device, &config);
	int status = rc ? 2 : 0;
	if (!rc)
		rc = config.help ? help(verb) : verbs[which].run(&config);
	if (rc < 0)
		tell_fault(verb, rh_error(rc));
	rh_config_free(&config);
	return rc ? (status ? status : 1) : 0;
}

int main(int argc, char **argv)
{
	int rc = rh_fs_open_standard();
	if (rc) {
		fprintf(stderr, "roundhouse: %s\n", rh_error(rc));
		return 1;
	}
	const char *verb = argc > 1 ? argv[1] : "--help";
	if (!strcmp(verb, "--version")) {
		puts("roundhouse " RH_VERSION);
		return finish_output(verb, 0);
	}
	if (!strcmp(verb, "--help") || !strcmp(verb, "-h") || !strcmp(verb, "help")) {
		usage(argc < 2 ? stderr : stdout);
		return finish_output(verb, argc < 2 ? 2 : 0);
	}
	return finish_output(verb, run_verb(verb, argc - 2, argv + 2));
}
