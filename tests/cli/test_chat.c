/* A model asked as it was trained: system messages, tools and conversations so far, at a terminal and from a pipe; and the template that an
 * adapter brings to a base without one. */
#include "cli/good.h"

#include <poll.h>
#include <termios.h>

#define TALK(user, assistant)                                                                                                              \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"}, {\"role\": \"assistant\", \"content\": \"" assistant "\"}]}\n"
#define LORA "--lora_r 4 --lora_target_modules all-linear"
static const char turns[] = "{% if tools %}{{ tools | tojson }}\n{% endif %}"
                            "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
                            "{% if add_generation_prompt %}assistant: {% endif %}";

static void make_talk(struct scratch *scratch)
{
	make_good(scratch);
	write_text(path_of("%s/talk.jsonl", scratch->dir),
	           TALK("hi", "good day") TALK("who", "a cat") TALK("one", "two") TALK("red", "blue"));
	write_text(path_of("%s/turns.jinja", scratch->dir), turns);
}

/* ---- generate ---- */

static char *generated(const struct scratch *scratch, const char *more)
{
	char line[1024];
	fill_in(scratch, path_of("generate --model_name_or_path @/hf --max_new_tokens 6 --json %s", more), line, sizeof line);
	struct ran ran = run_line(scratch, "%s", line);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	free(ran.err);
	return ran.out;
}

/* What the keys make is what the template's own text, given as it stands, makes. */
static void expect_as(const struct scratch *scratch, const char *keys, const char *text)
{
	write_text(path_of("%s/whole.txt", scratch->dir), path_of("%s\n", text)); /* the last line break is left out */
	char *asked = generated(scratch, path_of("--chat_template @/turns.jinja %s", keys));
	char *whole = generated(scratch, "--chat_template none --prompt_file @/whole.txt");
	if (strcmp(asked, whole))
		fail_msg("%s: %s is not %s", keys, asked, whole);
	free(asked);
	free(whole);
}

static void test_generate_takes_system_tools_and_a_conversation(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	const char *dir = scratch.dir;
	expect_as(&scratch, "--system kind --prompt hi", "system: kind<|im_end|>\nuser: hi<|im_end|>\nassistant: ");
	write_text(path_of("%s/tools.json", dir), "[{\"name\": \"f\"}]"); /* a bare description, as data may have it */
	expect_as(&scratch, "--tools @/tools.json --prompt hi",
	          "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]\nuser: hi<|im_end|>\nassistant: ");
	write_text(path_of("%s/messages.json", dir), TALK("hi", "yes"));
	expect_as(&scratch, "--messages_file @/messages.json --prompt no",
	          "user: hi<|im_end|>\nassistant: yes<|im_end|>\nuser: no<|im_end|>\nassistant: ");
	write_text(path_of("%s/asked.json", dir), "[{\"role\": \"user\", \"content\": \"hi\"}]");
	expect_as(&scratch, "--messages_file @/asked.json --system kind", "system: kind<|im_end|>\nuser: hi<|im_end|>\nassistant: ");

	static const char *const line = "generate --model_name_or_path @/hf --chat_template @/turns.jinja %s";
	refused(&scratch, path_of(line, "--messages_file @/messages.json"), "messages_file: |leaves nothing to answer|add prompt");
	write_text(path_of("%s/named.json", dir), "[{\"role\": \"system\", \"content\": \"a\"}]");
	refused(&scratch, path_of(line, "--messages_file @/named.json --system b --prompt c"), "system: contradicts the system message");
	write_text(path_of("%s/none.json", dir), "{\"messages\": []}");
	refused(&scratch, path_of(line, "--messages_file @/none.json"), "messages_file: |none.json holds no conversation");
	refused(&scratch, path_of(line, "--tools @/none.json --prompt c"), "tools: |none.json holds no list of tools");
	write_text(path_of("%s/words.json", dir), "[\"f\"]");
	refused(&scratch, path_of(line, "--tools @/words.json --prompt c"), "words.json: tool 1 must be an object");
	refused(&scratch, path_of(line, "--tools @/not-there.json --prompt c"), "tools: |not-there.json|no such file");
	refused(&scratch, "generate --model_name_or_path @/hf --system b --prompt c", "system: |the model brings none; name one");
	refused(&scratch, "generate --model_name_or_path @/hf --chat_template none --system b --prompt c", "system: |remove one of them");
	scratch_close(&scratch);
}

/* ---- chat ---- */

struct terminal {
	pid_t pid;
	int master;
	char seen[1 << 14];
	size_t length, read; /* bytes that were seen, and that were waited for */
};

static void terminal_open(const struct scratch *scratch, const char *more, struct terminal *out)
{
	char line[1024], *words[64], *rest = line;
	int count = 0;
	fill_in(scratch, path_of("%s chat --model_name_or_path @/hf --max_new_tokens 4 %s", program_path(), more), line, sizeof line);
	for (char *word; count < 63 && (word = strsep(&rest, " "));)
		words[count++] = word;
	words[count] = NULL;
	*out = (struct terminal){.master = posix_openpt(O_RDWR | O_NOCTTY)};
	assert_true(out->master >= 0 && grantpt(out->master) == 0 && unlockpt(out->master) == 0);
	const char *name = ptsname(out->master);
	out->pid = fork();
	assert_true(out->pid >= 0);
	if (out->pid == 0) {
		setsid(); /* so that the terminal's Ctrl-C reaches it */
		int slave = open(name, O_RDWR);
		if (slave < 0 || dup2(slave, 0) < 0 || dup2(slave, 1) < 0 || dup2(slave, 2) < 0)
			_exit(126);
		setenv("TERM", "vt100", 1);
		setenv("HOME", scratch->dir, 1); /* nobody's ~/.editrc */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execv(words[0], words);
		_exit(127);
	}
}

/* Waits until `text` has been printed behind what was waited for before. */
static void terminal_expect(struct terminal *terminal, const char *text)
{
	for (;;) {
		char *at = memmem(terminal->seen + terminal->read, terminal->length - terminal->read, text, strlen(text));
		if (at) {
			terminal->read = (size_t)(at - terminal->seen) + strlen(text);
			return;
		}
		struct pollfd wait = {.fd = terminal->master, .events = POLLIN};
		ssize_t got = poll(&wait, 1, 60000) > 0 ? read(terminal->master, terminal->seen + terminal->length,
		                                               sizeof terminal->seen - 1 - terminal->length)
		                                        : -1;
		if (got <= 0)
			fail_msg("'%s' did not come behind: %s", text, terminal->seen + terminal->read);
		terminal->length += (size_t)got;
	}
}

static void terminal_type(struct terminal *terminal, const char *text)
{
	assert_int_equal(write(terminal->master, text, strlen(text)), strlen(text));
}

/* The line that the terminal's program is asked, and its prompt behind the answer. */
static void terminal_ask(struct terminal *terminal, const char *line, const char *expected)
{
	terminal_type(terminal, line);
	terminal_expect(terminal, expected);
	terminal_expect(terminal, "> ");
}

/* Waits until the program reads key by key: libedit prints its prompt first, and a Ctrl-D that comes before is lost. */
static void terminal_reads_keys(const struct terminal *terminal)
{
	enum { PATIENCE_MS = 60000, LOOK_MS = 2 };
	struct termios modes = {.c_lflag = ICANON};
	for (int ms = 0; (modes.c_lflag & ICANON) && ms < PATIENCE_MS; ms += LOOK_MS) {
		usleep(LOOK_MS * 1000);
		assert_int_equal(tcgetattr(terminal->master, &modes), 0);
	}
	assert_false(modes.c_lflag & ICANON);
}

static int terminal_close(struct terminal *terminal)
{
	enum { PATIENCE_MS = 60000, LOOK_MS = 20 };
	int status;
	pid_t ended = 0;
	for (int ms = 0; !ended && ms < PATIENCE_MS; ms += LOOK_MS) {
		ended = waitpid(terminal->pid, &status, WNOHANG);
		if (!ended)
			usleep(LOOK_MS * 1000);
	}
	if (!ended)
		fail_msg("the program did not end; it had printed: %s", terminal->seen + terminal->read);
	assert_int_equal(ended, terminal->pid);
	close(terminal->master);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_a_terminal_has_commands_editing_and_history(void **state)
{
	(void)state;
	struct scratch scratch;
	struct terminal terminal;
	make_talk(&scratch);
	terminal_open(&scratch, "--chat_template @/turns.jinja --system kind", &terminal);
	terminal_expect(&terminal, "/help lists commands");
	terminal_expect(&terminal, "> ");
	terminal_ask(&terminal, "/system\n", "system message: kind");
	terminal_ask(&terminal, "/system very brief\n", "begins anew, with this system message");
	terminal_ask(&terminal, "/system\n", "system message: very brief");
	terminal_ask(&terminal, "/rest\n", "there is no command /rest");
	terminal_ask(&terminal, "/reset\n", "the conversation begins anew");
	terminal_ask(&terminal, "helo\x1b[Dl\n", "o"); /* left, then the missing letter */
	terminal_type(&terminal, "\x1b[A\x1b[A");      /* up: the line before the edited one comes back */
	terminal_expect(&terminal, "reset");
	terminal_ask(&terminal, "\n", "the conversation begins anew");
	terminal_ask(&terminal, "\x1b[A\x1b[A\n", "hello"); /* as it was edited */
	terminal_type(&terminal, "one\\\n");
	terminal_expect(&terminal, ". ");
	terminal_ask(&terminal, "two\n", "two");
	terminal_type(&terminal, "\"\"\"a\n");
	terminal_expect(&terminal, ". ");
	terminal_ask(&terminal, "b\"\"\"\n", "b");
	/* more than fits: said, and the conversation is what it was before */
	char lengthy[202];
	memset(lengthy, 'z', 200);
	strcpy(lengthy + 200, "\n");
	terminal_ask(&terminal, lengthy, "the conversation has grown to");
	terminal_type(&terminal, "/exit\n");
	assert_int_equal(terminal_close(&terminal), 0);
	terminal_open(&scratch, "--chat_template @/turns.jinja", &terminal);
	terminal_expect(&terminal, "/help lists commands");
	terminal_expect(&terminal, "> ");
	terminal_reads_keys(&terminal);
	terminal_type(&terminal, "\x04"); /* Ctrl-D */
	assert_int_equal(terminal_close(&terminal), 0);
	scratch_close(&scratch);
}

static const char *typed;
static void give_input(void)
{
	int input = open(typed, O_RDONLY);
	if (input < 0 || dup2(input, 0) < 0)
		_exit(126);
}

/* The last line that chat prints to such an input. */
static char *last_answer(const struct scratch *scratch, const char *input, const char *more)
{
	char line[1024], path[128];
	struct ran ran;
	snprintf(path, sizeof path, "%s/typed", scratch->dir);
	write_text(path, input);
	fill_in(scratch, path_of("chat --model_name_or_path @/hf --chat_template @/turns.jinja --max_new_tokens 6 %s", more), line,
	        sizeof line);
	typed = path;
	run_prepare = give_input;
	run_start(scratch, line, 0, &ran);
	run_wait(&ran);
	run_prepare = NULL;
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	size_t length = strlen(ran.out);
	assert_true(length && ran.out[length - 1] == '\n');
	ran.out[length - 1] = 0;
	char *last = strrchr(ran.out, '\n'), *out = strdup(last ? last + 1 : ran.out);
	run_free(&ran);
	return out;
}

static void expect_chat_as(const struct scratch *scratch, const char *input, const char *more, const char *text)
{
	write_text(path_of("%s/whole.txt", scratch->dir), path_of("%s\n", text));
	char *last = last_answer(scratch, input, more);
	char line[1024];
	fill_in(scratch, "generate --model_name_or_path @/hf --max_new_tokens 6 --chat_template none --prompt_file @/whole.txt", line,
	        sizeof line);
	struct ran ran = run_line(scratch, "%s", line);
	char *whole = ran.out + strlen(ran.out) - 1;
	*whole = 0;
	whole = strrchr(ran.out, '\n') ? strrchr(ran.out, '\n') + 1 : ran.out;
	if (strcmp(last, whole))
		fail_msg("'%s': '%s' is not '%s'", input, last, whole);
	run_free(&ran);
	free(last);
}

static void test_what_is_said_in_chat_reaches_the_model(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	expect_chat_as(&scratch, "no\n/reset\nhi\n", "", "user: hi<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "/system kind\nhi\n", "--system bad", "system: kind<|im_end|>\nuser: hi<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "no\n/reset\nhi\n", "--system kind", "system: kind<|im_end|>\nuser: hi<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "a\\\nb\n", "", "user: a\nb<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "\"\"\"a\n\n  b\"\"\"\n", "", "user: a\n\n  b<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "\"\"\"\na\nb\n\"\"\"\n", "", "user: a\nb\n<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "/usr/bin\n", "", "user: /usr/bin<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "/tool 7\n", "", "tool: 7<|im_end|>\nassistant: ");
	expect_chat_as(&scratch, "hi\n/exit\nno\n", "", "user: hi<|im_end|>\nassistant: ");
	write_text(path_of("%s/messages.json", scratch.dir), TALK("hi", "yes"));
	expect_chat_as(&scratch, "x\n/reset\nno\n", "--messages_file @/messages.json",
	               "user: hi<|im_end|>\nassistant: yes<|im_end|>\nuser: no<|im_end|>\nassistant: ");
	scratch_close(&scratch);
}

/* ---- an adapter's own template ---- */

static void test_an_adapters_template_serves_a_base_without_one(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml --train_file %s/talk.jsonl --chat_template %s/turns.jinja " LORA, dir, dir, dir);
	static const char *const lines[] = {"inspect --train_file @/talk.jsonl --json %s",
	                                    "eval --validation_file @/talk.jsonl --max_length 64 %s"};
	for (int i = 0; i < 2; i++)
		for (int others = 0; others < 2; others++) { /* an adapter of another program has no roundhouse.json */
			char line[2][1024];
			const char *out = others ? "other" : "out";
			copy_dir(path_of("%s/out", dir), path_of("%s/other", dir));
			(void)unlink(path_of("%s/other/roundhouse.json", dir));
			fill_in(&scratch, path_of(lines[i], path_of("--model_name_or_path @/hf --adapter_name_or_path @/%s", out)), line[0],
			        sizeof line[0]);
			snprintf(line[1], sizeof line[1], "%s --chat_template %s/turns.jinja", line[0], dir);
			struct ran own = run_line(&scratch, "%s", line[0]), named = run_line(&scratch, "%s", line[1]);
			if (own.status || named.status)
				fail_msg("%s%s", own.err, named.err);
			assert_non_null(strstr(own.err, path_of("conversations go through the chat template of %s/%s", dir, out)));
			if (i) /* seconds differ, losses do not */
				assert_int_equal(strncmp(own.out, named.out, strcspn(named.out, ";")), 0);
			run_free(&own);
			run_free(&named);
		}
	/* a run that goes on from it carries it further */
	run_ok(&scratch, "train %s/run.yaml --train_file %s/talk.jsonl --adapter_name_or_path %s/out --output_dir %s/further", dir, dir,
	       dir, dir);
	check_same_file(&scratch, "out", "further", "chat_template.jinja");
	/* in place of the base's, as generate takes it */
	write_text(path_of("%s/hf/chat_template.jinja", dir), "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
	char line[1024];
	fill_in(&scratch, "eval --validation_file @/talk.jsonl --max_length 64 --model_name_or_path @/hf --adapter_name_or_path @/out",
	        line, sizeof line);
	struct ran own = run_line(&scratch, "%s", line), named = run_line(&scratch, "%s --chat_template %s/turns.jinja", line, dir);
	assert_non_null(strstr(own.err, "in place of the base's"));
	assert_int_equal(strncmp(own.out, named.out, strcspn(named.out, ";")), 0);
	run_free(&own);
	run_free(&named);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_generate_takes_system_tools_and_a_conversation),
	        cmocka_unit_test(test_a_terminal_has_commands_editing_and_history),
	        cmocka_unit_test(test_what_is_said_in_chat_reaches_the_model),
	        cmocka_unit_test(test_an_adapters_template_serves_a_base_without_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
