/* --help of a verb: what it needs, its flags that are no keys, its keys. */
#include "config/config_internal.h"
#include "core/wrap.h"

#include <string.h>

static const struct {
	unsigned verb;
	const char *text;
} leads[] = {
        {VERB_TRAIN,
         "Needs model_name_or_path (or config_name), train_file and output_dir. Ctrl-C or SIGTERM saves a checkpoint and ends the run\n"
         "with exit status 0; resume_from_checkpoint: true goes on from it.\n"},
        {VERB_PLAN,
         "Needs model_name_or_path or config_name, of which only config.json is read; the rows of train_file where they are there.\n"
         "Exit status: 0 it fits, 1 it does not.\n"
         "\nplan\n"
         "  --hardware NAME                 the machine: a profile of examples/hardware, which the program has within, one that\n"
         "                                  `doctor --save NAME` wrote, or a file; unset: this one\n"
         "  --gpus N                        number of devices [all; 1 of a card's profile such as rtx3060, which may have up to four]\n"
         "  --gantt FILE.svg                one step drawn: what each device does when\n"
         "  --compare                       one line for every schedule instead; in mode fluidpipe: beside it, which mode is\n"
         "                                  the fastest, by round trip and speed of the link\n"
         "  --check                         the steps' commands are checked, too: each finds what it needs, in whatever order a run takes\n"
         "  --json                          all of it as one line of JSON\n"},
        {VERB_STRESS,
         "\nstress\n"
         "  The longest sequence that can be trained on, one in each step: with all on the device, with the host's memory, and with\n"
         "  NVMe (nvme_dirs and max_nvme). Found by plans, then tried with random tokens on this machine; of another one\n"
         "  (--hardware) predicted alone. Needs the model; train_file is not read.\n"
         "  --time TIME                     when to stop, such as 90s, 10m or 2h [10m]\n"
         "  --hardware NAME, --gpus N       as in plan\n"
         "  --svg FILE.svg                  tokens/s over the length, drawn\n"
         "  --json                          all of it as one line of JSON\n"},
        {VERB_VERIFY,
         "Needs what train needs, but for output_dir. Computes the gradients of the first step as the run would (its devices, tiers,\n"
         "rounds, chunks, schedule), then on one device that holds everything, and compares each tensor's: to the bit, or within\n"
         "rounding where rows are cut into chunks. Where the reference does not fit within max_ram, of the first layers that do.\n"
         "Nothing is trained or written. Exit status: 0 they agree, 1 they do not.\n"},
        {VERB_EVAL,
         "\neval\n"
         "  Loss and accuracy of model_name_or_path, with adapter_name_or_path of the model with that adapter, on validation_file; or on\n"
         "  the rows of train_file that training with this eval_split held out.\n"
         "  The configuration file of the training run can be used; keys that concern only training are ignored.\n"},
        {VERB_INSPECT, "Needs model_name_or_path, of which only the tokenizer is read, and train_file or validation_file.\n"
                       "Exit status: 0 train would go on, 1 it would stop at faults of the data.\n"},
        {VERB_GENERATE,
         "Needs model_name_or_path, and prompt or prompt_file. The prompt goes through the template that the model was trained\n"
         "with; chat_template names another one, or none.\n"},
        {VERB_CHAT, "Needs model_name_or_path, of a model that brings a chat template or was trained with one. Reads a line a turn.\n"},
        {VERB_MERGE, "Needs model_name_or_path, adapter_name_or_path, and output_dir or outfile.\n"},
        {VERB_EXPORT, "Needs model_name_or_path, and outfile (a .gguf) or output_dir. With adapter_name_or_path it writes that adapter "
                      "alone, as a GGUF\n"
                      "file for llama.cpp's --lora.\n"},
        {VERB_JOIN, "Needs parts and output_dir.\n"},
        {VERB_DOCTOR, "Needs no configuration: it measures the device and the drives named below.\n"},
        {VERB_KEYS, "Needs no configuration. A key that is there already stays, and its hash is printed.\n"},
};

static const char *lead_of(unsigned verb)
{
	for (size_t i = 0; i < sizeof leads / sizeof *leads; i++)
		if (leads[i].verb == verb)
			return leads[i].text;
	return "";
}

/* Words of text, broken into lines that begin under one another. */
static int put_wrapped(struct rh_text *out, const char *text)
{
	enum { INDENT = 34, COLUMNS_MOST = 100, COLUMNS_LEAST = 60 };
	int terminal = rh_columns_of(stdout);
	size_t column = INDENT, columns = terminal >= COLUMNS_LEAST && terminal < COLUMNS_MOST ? (size_t)terminal : COLUMNS_MOST;
	int rc = 0;
	while (!rc && *text) {
		size_t length = strcspn(text, " ");
		int breaks = column > INDENT && column + 1 + length > columns;
		if (breaks)
			rc = rh_text_printf(out, "\n%*s", INDENT, "");
		else if (column > INDENT)
			rc = rh_text_printf(out, " ");
		if (!rc)
			rc = rh_text_printf(out, "%.*s", (int)length, text);
		column = (breaks ? INDENT : column + (column > INDENT)) + length;
		text += length + (text[length] == ' ');
	}
	return rc ? rc : rh_text_printf(out, "\n");
}

static int put_key(struct rh_text *out, const struct config_key *key, const char *schedules)
{
	char expected[256];
	struct rh_text said = {0};
	config_key_describe(key, expected, sizeof expected);
	int rc = rh_text_printf(&said, "%s", key->help);
	int needs_no_more = key->type == KEY_INERT || key->type == KEY_STRING || key->type == KEY_TARGETS || key->type == KEY_RESUME ||
	                    key->type == KEY_LIST;
	if (!rc && !needs_no_more)
		rc = rh_text_printf(&said, "; %s", expected);
	if (!rc && key->offset == offsetof(struct config_draft, config.schedule))
		rc = rh_text_printf(&said, ": %s", schedules);
	if (!rc && key->fallback)
		rc = rh_text_printf(&said, " [%s]", key->fallback);
	if (!rc)
		rc = rh_text_printf(out, "  %-31s ", key->name);
	if (!rc)
		rc = put_wrapped(out, said.bytes);
	rh_text_free(&said);
	return rc;
}

int rh_config_help(const char *verb, const char *schedules, struct rh_text *out)
{
	unsigned bit = config_verb_bit(verb);
	const char *heading = NULL;
	int rc = rh_text_printf(out,
	                        "roundhouse %s [CONFIG.yaml] [--key value]...\n"
	                        "Keys go into CONFIG.yaml (key: value) or on the command line, which wins. In brackets: the default.\n"
	                        "Also --json (the result as JSON on stdout)%s and --help.\n%s",
	                        verb, bit & VERB_REPLACES ? ", --force (write the result over a file that Roundhouse did not write)" : "",
	                        lead_of(bit));
	for (size_t i = 0; i < config_key_count && !rc; i++) {
		const struct config_key *key = &config_keys[i];
		heading = key->heading ? key->heading : heading;
		if (!(key->verbs & bit))
			continue;
		if (heading)
			rc = rh_text_printf(out, "\n%s\n", heading);
		heading = NULL;
		if (!rc)
			rc = put_key(out, key, schedules);
	}
	return rc;
}
