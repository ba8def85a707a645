/* Every form and format of rows gives the ids and masks of its reference form; what is wrong is named with file, line and mend. */
#include "check.h"

#include "core/file.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/form.h"
#include "data/records.h"
#include "fake_tokenizer.h"

#include <malloc.h>
#include <stdarg.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char folder[64];
static const struct rh_tokenizer tokenizer = {.has_eos = 1};
enum { TEMPLATE_CHATML = 1, ANSWERS_ONLY = 2 };

static char *in_folder(const char *name)
{
	static char paths[8][128];
	static int turn;
	char *path = paths[turn++ % 8];
	snprintf(path, sizeof paths[0], "%s/%s", folder, name);
	return path;
}

static struct rh_config config_of(int flags)
{
	struct rh_config config = {.dataset_text_field = (char *)(uintptr_t) "text", .max_length = 4096};
	config.completion_only_loss = RH_UNSET;
	config.assistant_only_loss = flags & ANSWERS_ONLY ? RH_YES : RH_UNSET;
	config.chat_template = flags & TEMPLATE_CHATML ? (char *)(uintptr_t) "chatml" : NULL;
	return config;
}

static int load_file(char *path, struct rh_config config, const char *columns, struct rh_dataset *out)
{
	char *item[] = {(char *)(uintptr_t)columns, columns ? strchr(columns, ' ') : NULL};
	char map[128];
	config.train_file = (struct rh_list){&path, 1, 1};
	if (columns) { /* "prompt=a completion=b" */
		snprintf(map, sizeof map, "%s", columns);
		item[0] = map;
		item[1] = strchr(map, ' ');
		if (item[1])
			*item[1]++ = 0;
		config.data_columns = (struct rh_list){item, item[1] ? 2 : 1, 2};
	}
	return rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, out);
}

static void write_file(const char *path, const char *content)
{
	check_ok(rh_file_write_whole(path, content, strlen(content)));
}

static void assert_same(const struct rh_dataset *a, const struct rh_dataset *b)
{
	assert_int_equal(a->tokens, b->tokens);
	assert_int_equal(a->documents, b->documents);
	assert_memory_equal(a->ids, b->ids, (size_t)a->tokens * sizeof *a->ids);
	assert_memory_equal(a->trained, b->trained, (size_t)a->tokens);
	assert_memory_equal(a->document_start, b->document_start, (size_t)(a->documents + 1) * sizeof *a->document_start);
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define SYSTEM(text)    "{\"role\":\"system\",\"content\":\"" text "\"}"
#define ALPACA_HEAD     "Below is an instruction that describes a task. Write a response that appropriately completes the request.\\n\\n"
#define ALPACA_INPUT_HEAD                                                                                                                  \
	"Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "        \
	"appropriately completes the request.\\n\\n"

static const struct form_case {
	const char *what, *content, *reference;
	int flags;
	const char *columns;
} cases[] = {
        {"Alpaca without input, with a template", "{\"instruction\":\"i\",\"input\":\"\",\"output\":\"o\",\"text\":\"unused\"}",
         "{\"prompt\":[" USER("i") "],\"completion\":[" ASSISTANT("o") "]}", TEMPLATE_CHATML, NULL},
        {"Alpaca with input, system and history",
         "{\"instruction\":\"i\",\"input\":\"in\",\"output\":\"o\",\"system\":\"s\",\"history\":[[\"a\",\"b\"],[\"c\",\"d\"]]}",
         "{\"prompt\":[" SYSTEM("s") "," USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("d") "," USER(
                 "i\\nin") "],\"completion\":[" ASSISTANT("o") "]}",
         TEMPLATE_CHATML, NULL},
        {"Alpaca without a template", "{\"instruction\":\"i\",\"input\":\"\",\"output\":\"o\"}",
         "{\"prompt\":\"" ALPACA_HEAD "### Instruction:\\ni\\n\\n### Response:\",\"completion\":\"o\"}", 0, NULL},
        {"Alpaca with a NUL in each text, without a template",
         "{\"instruction\":\"i\\u0000j\",\"input\":\"k\\u0000l\",\"output\":\"o\\u0000p\",\"system\":\"s\\u0000t\",\"history\":[["
         "\"a\\u0000b\","
         "\"c\\u0000d\"]]}",
         "{\"prompt\":\"s\\u0000t\\n\\n### Instruction:\\na\\u0000b\\n\\n### Response:c\\u0000d\\n\\n### Instruction:\\ni\\u0000j\\n\\n### "
         "Input:"
         "\\nk\\u0000l\\n\\n### Response:\",\"completion\":\"o\\u0000p\"}",
         0, NULL},
        {"Alpaca with input, without a template", "{\"instruction\":\"i\",\"input\":\"in\",\"output\":\"o\"}",
         "{\"prompt\":\"" ALPACA_INPUT_HEAD "### Instruction:\\ni\\n\\n### Input:\\nin\\n\\n### Response:\",\"completion\":\"o\"}", 0,
         NULL},
        {"ShareGPT", "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"r\"}],\"system\":\"s\"}",
         "{\"messages\":[" SYSTEM("s") "," USER("q") "," ASSISTANT("r") "]}", TEMPLATE_CHATML | ANSWERS_ONLY, NULL},
        {"ShareGPT with a system's message in both places",
         "{\"conversations\":[{\"from\":\"system\",\"value\":\"t\"},{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"r\"}"
         "],"
         "\"system\":\"s\"}",
         "{\"messages\":[" SYSTEM("t") "," USER("q") "," ASSISTANT("r") "]}", TEMPLATE_CHATML, NULL},
        {"ShareGPT with roles as messages have them",
         "{\"conversations\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"r\"}]}",
         "{\"messages\":[" USER("q") "," ASSISTANT("r") "]}", TEMPLATE_CHATML, NULL},
        {"question and answer", "{\"question\":\"q\",\"answer\":\"a\"}", "{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT("a") "]}",
         TEMPLATE_CHATML, NULL},
        {"input and output", "{\"input\":\"q\",\"output\":\"a\"}", "{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT("a") "]}",
         TEMPLATE_CHATML, NULL},
        {"columns of other names", "{\"title\":\"t\",\"body\":\"b\",\"text\":\"unused\"}", "{\"prompt\":\"t\",\"completion\":\"b\"}", 0,
         "prompt=title completion=body"},
        {"a column mapped to text before other forms", "{\"prompt\":\"p\",\"completion\":\"c\",\"body\":\"b\"}", "{\"text\":\"b\"}", 0,
         "text=body"},
        {"a JSON array over several lines", "\n[\n {\"text\": \"a,]\\\"\"},\n {\n  \"text\": \"b\"\n }\n]\n",
         "{\"text\":\"a,]\\\"\"}\n{\"text\":\"b\"}", 0, NULL},
        {"CSV of one column with empty lines", "text\r\na\r\n\r\n\"b\r\n\r\nc\"\r\n\n", "{\"text\":\"a\"}\n{\"text\":\"b\\r\\n\\r\\nc\"}",
         0, NULL},
        {"CSV with quotes, separators and newlines in fields", "\xEF\xBB\xBFprompt,completion\r\nab,\"c,\"\"d\"\"\ne\"\r\n\r\n,f",
         "{\"prompt\":\"ab\",\"completion\":\"c,\\\"d\\\"\\ne\"}\n{\"prompt\":\"\",\"completion\":\"f\"}", 0, NULL},
        {"CSV whose lines end with carriage returns alone", "prompt,completion\rab,\"c\rd\"\r\re,f\r",
         "{\"prompt\":\"ab\",\"completion\":\"c\\rd\"}\n{\"prompt\":\"e\",\"completion\":\"f\"}", 0, NULL},
        {"CSV whose header ends with two of them", "prompt,completion\r\r\nab,c\r\n", "{\"prompt\":\"ab\",\"completion\":\"c\"}", 0,
         "completion=completion\r"},
        {"TSV", "prompt\tcompletion\tid\na, b\t\"c\td\"\t1\n", "{\"prompt\":\"a, b\",\"completion\":\"c\\td\"}", 0, NULL},
        {"semicolons, as spreadsheets of many countries write them", "question;answer\nq;a,b\n", "{\"question\":\"q\",\"answer\":\"a,b\"}",
         TEMPLATE_CHATML, NULL},
        {"a table of one column", "text\n\"a\nb\"\nc\n", "{\"text\":\"a\\nb\"}\n{\"text\":\"c\"}", 0, NULL},
        {"messages as JSON text in CSV",
         "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"q\"\"},{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"r\"\"}]"
         "\"\n",
         "{\"messages\":[" USER("q") "," ASSISTANT("r") "]}", TEMPLATE_CHATML, NULL},
        {"CSV in Alpaca's columns", "instruction,input,output\ni,in,o\n",
         "{\"prompt\":[" USER("i\\nin") "],\"completion\":[" ASSISTANT("o") "]}", TEMPLATE_CHATML, NULL},
};

static void test_each_form_gives_its_references_ids_and_masks(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_dataset set, reference;
		char *path = in_folder("rows"), *other = in_folder("reference");
		write_file(path, cases[i].content);
		write_file(other, cases[i].reference);
		int rc = load_file(path, config_of(cases[i].flags), cases[i].columns, &set);
		if (rc)
			fail_msg("%s: %s", cases[i].what, rh_error(rc));
		check_ok(load_file(other, config_of(cases[i].flags), NULL, &reference));
		print_message("%s\n", cases[i].what);
		assert_same(&set, &reference);
		assert_int_equal(set.read_rows, reference.read_rows);
		assert_true(set.trained_tokens > 0);
		rh_dataset_free(&set);
		rh_dataset_free(&reference);
	}
}

/* Each content is stored plain, in gzip (also as two members) and in zstd (also as two frames): the same rows. */
static void test_compressed_files_give_the_same_rows(void **state)
{
	(void)state;
	struct rh_text content = {0};
	for (int i = 0; i < 20000; i++)
		check_ok(rh_text_printf(&content, "{\"text\":\"row %d of many\"}\n", i));
	struct rh_dataset plain, packed;
	check_ok(rh_file_write_whole(in_folder("plain"), content.bytes, content.length));
	check_ok(load_file(in_folder("plain"), config_of(0), NULL, &plain));
	assert_int_equal(plain.documents, 20000);
	size_t half = content.length / 2;
	for (int zstd = 0; zstd < 2; zstd++) {
		char *path = in_folder("packed");
		unlink(path);
		for (int part = 0; part < 2; part++) {
			const char *from = content.bytes + (part ? half : 0);
			size_t length = part ? content.length - half : half, room = ZSTD_compressBound(length);
			FILE *file = fopen(path, "ab");
			if (zstd) {
				void *bytes = malloc(room);
				size_t got = ZSTD_compress(bytes, room, from, length, 3);
				assert_int_equal(fwrite(bytes, 1, got, file), got);
				free(bytes);
				fclose(file);
			} else {
				fclose(file);
				gzFile gz = gzopen(path, "ab");
				assert_int_equal(gzwrite(gz, from, (unsigned)length), length);
				gzclose(gz);
			}
		}
		check_ok(load_file(path, config_of(0), NULL, &packed));
		assert_same(&plain, &packed);
		rh_dataset_free(&packed);
		struct rh_bytes whole;
		check_ok(rh_file_load(path, &whole));
		check_ok(rh_file_write_whole(in_folder("short"), whole.bytes, whole.length - 20));
		rh_bytes_free(&whole);
		assert_int_equal(load_file(in_folder("short"), config_of(0), NULL, &packed), -EINVAL);
		assert_non_null(strstr(rh_error(-EINVAL), "fetch or compress the file again"));
	}
	rh_dataset_free(&plain);
	rh_text_free(&content);
}

/* Rows longer than the pieces that a file is read in. */
static void test_long_rows_are_read_whole(void **state)
{
	(void)state;
	enum { LONG = 3 << 20 };
	struct rh_text content = {0};
	char *run = malloc(LONG);
	memset(run, 'x', LONG);
	check_ok(rh_text_printf(&content, "{\"text\":\"a\"}\n{\"text\":\""));
	check_ok(rh_text_append(&content, run, LONG));
	check_ok(rh_text_printf(&content, "\"}\n{\"text\":\"b\"}\n"));
	check_ok(rh_file_write_whole(in_folder("long"), content.bytes, content.length));
	struct rh_dataset set;
	struct rh_config config = config_of(0);
	config.max_length = 1 << 24;
	check_ok(load_file(in_folder("long"), config, NULL, &set));
	assert_int_equal(set.documents, 3);
	assert_int_equal(set.document_start[2] - set.document_start[1], LONG + 1);
	rh_dataset_free(&set);
	config.max_ram = 26 << 20; /* less than a row's parser takes: the row is not read to its end */
	assert_int_equal(load_file(in_folder("long"), config, NULL, &set), -EINVAL);
	assert_non_null(
	        strstr(rh_error(-EINVAL),
	               "long:2: a row of at least 3.0 MiB takes up to 12.0 MiB while it is read and encoded, and max_ram leaves 11.5;"));
	config.max_ram = 128 << 20; /* less than what merges a word of this length takes */
	assert_int_equal(load_file(in_folder("long"), config, NULL, &set), -EINVAL);
	assert_non_null(
	        strstr(rh_error(-EINVAL),
	               "long:2: a row of at least 3.0 MiB takes up to 132.0 MiB while it is read and encoded, and max_ram leaves 113.5;"));
	config.max_ram = 256 << 20;
	check_ok(load_file(in_folder("long"), config, NULL, &set));
	rh_dataset_free(&set);
	rh_text_free(&content);
	free(run);
}

/* ---- what the JSON library takes ---- */

static size_t json_bytes, json_peak;

static void *take_counted(size_t bytes)
{
	void *memory = malloc(bytes);
	json_bytes += malloc_usable_size(memory);
	json_peak = json_bytes > json_peak ? json_bytes : json_peak;
	return memory;
}

static void free_counted(void *memory)
{
	json_bytes -= malloc_usable_size(memory);
	free(memory);
}

/* A file's second row, of many pieces (formats for a number) between `before` and `behind`. */
static void write_row_of(const char *path, const char *first, const char *before, const char *piece, const char *behind)
{
	enum { COUNT = 66000 };
	struct rh_text content = {0};
	check_ok(rh_text_printf(&content, "%s%s", first, before));
	for (int i = 0; i < COUNT; i++)
		check_ok(rh_text_printf(&content, piece, i));
	check_ok(rh_text_printf(&content, "%s", behind));
	check_ok(rh_file_write_whole(path, content.bytes, content.length));
	rh_text_free(&content);
}

/* What a plan counts for a row bounds what its values take, also where they are many and small, in columns that nobody reads. */
static void test_values_of_a_row_take_no_more_than_is_counted(void **state)
{
	(void)state;
	static const char *const rows[][4] = {
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",1", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",1.5", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",\"\"", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",{}", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",[[]]", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":[0", ",{\"a\":\"b\"}", "]}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b\",\"x\":{\"a\":1", ",\"%d\":\"\"", "}}\n"},
	        {"{\"text\":\"a\"}\n", "{\"text\":\"b", "bbbbbb", "\"}\n"},
	};
	json_set_alloc_funcs(take_counted, free_counted);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct data_records records;
		json_t *row;
		write_row_of(in_folder("values"), rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
		check_ok(data_records_open(in_folder("values"), &records));
		for (int r = 0; r < 2; r++) {
			json_bytes = json_peak = 0;
			assert_int_equal(data_records_next(&records, &row), 1);
			json_decref(row);
		}
		if ((int64_t)json_peak > records.row_bytes)
			fail_msg("row %zu: %zu bytes of %lld", i, json_peak, (long long)records.row_bytes);
		data_records_close(&records);
	}
	json_set_alloc_funcs(malloc, free);
}

static void test_sharegpt_keeps_what_templates_are_given(void **state)
{
	(void)state;
	json_t *row = json_pack("{s:[{s:s, s:s, s:s}], s:{s:b}, s:[s], s:i}", "conversations", "from", "gpt", "value", "a", "thinking", "t",
	                        "chat_template_kwargs", "enable_thinking", 0, "documents", "d", "id", 1);
	json_t *expected = json_pack("{s:[{s:s, s:s, s:s}], s:{s:b}, s:[s]}", "messages", "role", "assistant", "content", "a", "thinking",
	                             "t", "chat_template_kwargs", "enable_thinking", 0, "documents", "d");
	check_ok(data_sharegpt_convert(NULL, "row", &row));
	assert_true(json_equal(row, expected));
	json_decref(row);
	json_decref(expected);
}

static void test_columns_that_are_not_read_are_told(void **state)
{
	(void)state;
	static const struct {
		const char *content, *columns, *unread;
	} files[] = {
	        {"{\"text\":\"a\"}", NULL, ""},
	        {"{\"id\":1,\"text\":\"a\",\"note\":null,\"tag\":\"\"}", NULL, "'id'"},
	        {"{\"instruction\":\"i\",\"input\":\"\",\"output\":\"o\",\"history\":[],\"system\":\"s\"}", NULL, ""},
	        {"{\"system\":\"s\",\"messages\":[" ASSISTANT("a") "],\"images\":[\"a.png\"]}", NULL, "'system', 'images'"},
	        {"{\"system\":\"s\",\"talk\":[{\"from\":\"gpt\",\"value\":\"a\"}]}", "conversations=talk", ""},
	        {"{\"title\":\"t\",\"body\":\"b\",\"text\":\"unused\"}", "prompt=title completion=body", "'text'"},
	};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		struct rh_dataset set;
		char *path = in_folder("unread");
		write_file(path, files[i].content);
		check_ok(load_file(path, config_of(TEMPLATE_CHATML), files[i].columns, &set));
		const char *list = strstr(set.unread, "not read: ");
		assert_string_equal(list ? list + strlen("not read: ") : "", files[i].unread);
		rh_dataset_report(&set);
		rh_dataset_free(&set);
	}
}

static const struct {
	const char *content, *line, *mend;
	int flags;
} wrong[] = {
        {"[{\"text\":\"a\"} {\"text\":\"b\"}]", ":1: ", "expected ',' or ']'", 0},
        {"{\"inputs\":\"a\",\"targets\":\"b\"}", ":1: ", "data_columns: {question: inputs, answer: targets}", 0},
        {"[{\"text\":\"a\"},\n5]", ":2: ", "expected an object", 0},
        {"[{\"text\":\"a\"},\n]", ":2: ", "a comma stands behind the array's last item; take it out", 0},
        {"{\"user\":\"a\",\"assistant\":\"b\"}", ":1: ", "data_columns: {question: user, answer: assistant}", 0},
        {"{\"gpt\":\"b\",\"human\":\"a\"}", ":1: ", "data_columns: {question: human, answer: gpt}", 0},
        {"[[" USER("q") "," ASSISTANT("a") "]]", ":1: ", "is one row, such as {\"messages\": [...]}", 0},
        {"{\"instruction\":\"i\",\"output\":null}", ":1: ", "the keys 'instruction', 'output' (null);", 0},
        {"[{\"text\":\"a\"},{\"text\":5}]", ":1 (row 2): ", "'text' must be a string", 0},
        {"[{\"text\":\"a\"},\n{\"text\":\"b\"}, {\"text\":5}]", ":2 (row 3): ", "'text' must be a string", 0},
        {"[{\"text\":\"a\"},\n{\"text\":\"b\"}\n", ":3: ", "the array does not end; is the file cut off?", 0},
        {"[{\"text\":\"a\"},\n{\"text\":\"b", ":2: ", "does not end; is the file cut off?", 0},
        {"[{\"text\":\"a\"}]\n[]", ":2: ", "keep one array in a file", 0},
        {"[\n{\n\"text\":\n'a'}]", ":4: not valid JSON", "column", 0},
        {"[]", ":1: ", "the file holds no rows", 0},
        {"{\r\n \"text\": \"a\"\r\n}\r\n", ":1: not valid JSON", "write each object on one line, as jq -c . does", 0},
        {"{\n \"data\": [\n  {\"text\": \"a\"},\n  {\"text\": \"b\"}\n ]\n}\n", ":1: not valid JSON", "write it alone, as jq .data does",
         0},
        {"{\"v\": [1], \"data\": [ {\"text\": \"a\"},\n{\"text\": \"b\"}]}\n", ":1: not valid JSON", "as jq .data does", 0},
        {"{\"messages\": [\n " USER("q") "]}\n", ":1: not valid JSON", "write each object on one line, as jq -c . does", 0},
        {"prompt,completion\na,b,c\n", ":2: ", "put a field that holds the separator into quotes", 0},
        {"prompt,completion\na,\"b\n", ":2: ", "write \"\" for a quote inside a field", 0},
        {"prompt,completion\na,\"b\"c\n", ":2: ", "write \"\" for a quote inside a field", 0},
        {"prompt,prompt\na,b\n", ":1: ", "the column 'prompt' is there twice; rename one", 0},
        {"title,body\na,b\n", ":2: ", "data_columns: {prompt: title, completion: body}", 0},
        {"a plain text\nof two lines\n", ":2: ", "a table, whose first line names its columns", 0},
        {"prompt,completion\n", ":1: ", "the file holds no rows", 0},
        {"{\"instruction\":\"i\",\"output\":5}", ":1: ", "'output' must be a string", TEMPLATE_CHATML},
        {"{\"instruction\":\"i\",\"output\":\"o\",\"history\":[[\"a\"]]}", ":1: ", "a list of [question, answer] pairs", TEMPLATE_CHATML},
        {"{\"conversations\":[{\"from\":\"bob\",\"value\":\"q\"}]}", ":1: turn 1 ", "rename it, or name it in dataset_info's tags",
         TEMPLATE_CHATML},
        {"{\"conversations\":[{\"from\":\"human\"}]}", ":1: turn 1", "'value' must be a string", TEMPLATE_CHATML},
        {"{\"conversations\":[]}", ":1: ", "it is empty", TEMPLATE_CHATML},
        {"{\"messages\":[{\"from\":\"human\",\"value\":\"q\"}]}", ":1: message 1 ", "data_columns: {conversations: messages}",
         TEMPLATE_CHATML},
        {"{\"messages\":[" USER("q") ",{\"role\":\"assistant\",\"content\":null}]}", ":1: chat template, line ",
         "; message 2 has no 'content': write \"\" in place of null", TEMPLATE_CHATML},
        {"{\"conversations\":[{\"from\":\"function_call\",\"value\":\"{\"}]}", ":1: turn 1 calls a function",
         "{\"name\": ..., \"arguments\"", TEMPLATE_CHATML},
        {"{\"conversations\":[{\"from\":\"gpt\",\"value\":\"a\",\"train_detail\":[{}]}]}", ":1: message 1: ", "'train_detail' is not read",
         TEMPLATE_CHATML},
        {"{\"query\":\"a\",\"response\":\"b\"}", ":1: ", "data_columns: {question: query, answer: response}", 0},
        {"Prompt,Completion\na,b\n", ":2: ", "data_columns: {prompt: Prompt, completion: Completion}", 0},
        {"{\"Question\":\"a\",\"Answer\":\"b\"}", ":1: ", "data_columns: {question: Question, answer: Answer}", 0},
        {"{\"instruction\":\"a\",\"response\":\"b\"}", ":1: ", "data_columns: {instruction: instruction, output: response}", 0},
        {"{\"context\":\"c\",\"instruction\":\"a\",\"response\":\"b\"}",
         ":1: ", "data_columns: {instruction: instruction, input: context, output: response}", 0},
        {"{\"prompt\":\"q\",\"chosen\":[" USER("q") "," ASSISTANT("a") "]}", ":1: ", "data_columns: {messages: chosen}", 0},
        {"{\"rejected\":[" USER("q") "],\"chosen\":[" USER("q") "]}", ":1: ", "data_columns: {messages: chosen}", 0},
        {"{\"prompt\":\"q\",\"rejected\":\"a\",\"chosen\":\"b\"}", ":1: ", "loss_type: sigmoid (DPO) trains on both", 0},
        {"{\"prompt\":\"q\",\"completion\":\"a\",\"label\":true}", ":1: ", "loss_type: kto trains on such rows", 0},
        {"{\"instruction\":\"q\",\"output\":\"a\",\"kto_tag\":false}", ":1: ", "loss_type: kto trains on such rows", 0},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("a") "]}", ":1: ", "data_columns: {completion: chosen}", 0},
        {"{\"talk\":[{\"from\":\"human\",\"value\":\"q\"}]}", ":1: ", "data_columns: {conversations: talk}", 0},
        {"[" USER("q") "," ASSISTANT("a") "]\n[" USER("q") "]\n", ":1: ", "write each conversation as {\"messages\": [...]}", 0},
        {"{\"input_ids\":[1,2],\"labels\":[-100,2]}", ":1: ", "give the text of which they were made", 0},
        {"{\"version\":\"1\",\"data\":[{\"text\":\"a\"}]}", ":1: ", "write it alone, as jq .data does", 0},
        {"{\"dialogue\":[],\"x\":\"\"}", ":1: ", "data_columns: {messages: dialogue}", 0},
        {"{}", ":1: ", "a row has messages, prompt and completion", 0},
        {"messages\n\"[{'role': 'user'}]\"\n", ":2: ", "write it with json.dumps", TEMPLATE_CHATML},
        {"PAR1....", ": the file is too short for Parquet", "fetch it again", 0},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n", ": a git-lfs pointer", "(12345 bytes): run git lfs pull",
         0},
        {"BZh9", ": bzip2", "bunzip2", 0},
        {"PK\3\4....", ": a zip archive", "save the sheet as CSV", 0},
        {"\x1f\x8b\x08zzzzzzzzzzzzzzz", ": the gzip data are damaged", "again", 0},
};

static void test_wrong_rows_are_named_with_file_line_and_mend(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct rh_dataset set;
		char *path = in_folder("wrong");
		write_file(path, wrong[i].content);
		rh_error_clear();
		int rc = load_file(path, config_of(wrong[i].flags), NULL, &set);
		const char *line = rh_error(rc);
		if (rc != -EINVAL || strncmp(line, path, strlen(path)) ||
		    strncmp(line + strlen(path), wrong[i].line, strlen(wrong[i].line)) || !strstr(line, wrong[i].mend) ||
		    strchr(line, '\n'))
			fail_msg("case %zu: %d: %s", i, rc, line);
	}
}

static void test_function_calls_and_tools_become_what_templates_take(void **state)
{
	(void)state;
	json_t *row = NULL;
	struct rh_text rest = {0};
	(void)rest;
	static const char text[] = "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"function_call\",\"value\":\"{"
	                           "\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"x\\\":1}}\"},"
	                           "{\"from\":\"observation\",\"value\":\"7\"},{\"from\":\"gpt\",\"value\":\"r\",\"weight\":0}],\"tools\":"
	                           "\"[{\\\"name\\\":\\\"f\\\"}]\"}";
	static const char want[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", "
	                           "\"tool_calls\": [{\"type\": \"function\", \"function\": "
	                           "{\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, {\"role\": \"tool\", \"content\": \"7\"}, {\"role\": "
	                           "\"assistant\", \"content\": \"r\", \"weight\": 0}], "
	                           "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}";
	enum data_kind kind;
	check_ok(rh_json_parse(text, sizeof text - 1, "here", &row));
	check_ok(data_form_convert(FORM_SHAREGPT, NULL, 1, "here", &row, &kind));
	assert_int_equal(kind, DATA_MESSAGES);
	char *made = json_dumps(row, 0);
	assert_string_equal(made, want);
	free(made);
	json_decref(row);
}

static void test_several_files_are_weighed_and_limited(void **state)
{
	(void)state;
	struct rh_text content = {0};
	char *files[] = {in_folder("first"), in_folder("second")}, *weights[] = {(char[]){"2"}, (char[]){"0.25"}};
	write_file(files[0], "{\"text\":\"ab\"}\n{\"text\":\"cd\"}\n");
	for (int i = 0; i < 4000; i++)
		check_ok(rh_text_printf(&content, "r%d\n", i));
	struct rh_text table = {0};
	check_ok(rh_text_printf(&table, "text\n%s", content.bytes));
	check_ok(rh_file_write_whole(files[1], table.bytes, table.length));
	struct rh_config config = config_of(0);
	config.train_file = (struct rh_list){files, 2, 2};
	config.data_weights = (struct rh_list){weights, 2, 2};
	struct rh_dataset set, again;
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set));
	assert_int_equal(set.read_rows, 4002);
	assert_true(set.documents > 4 + 900 && set.documents < 4 + 1100);
	assert_int_equal(set.ids[0], 'a');
	assert_int_equal(set.ids[3], 'a');
	assert_int_equal(set.finding[RH_LINT_DUPLICATE].rows, 0); /* copies are meant */
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &again));
	assert_same(&set, &again);
	rh_dataset_free(&again);
	rh_dataset_free(&set);
	weights[0] = weights[1] = (char[]){"1e-6"};
	assert_int_equal(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set), -EINVAL);
	check_has(rh_error(-EINVAL), "data_weights|4002 rows|raise");
	config.data_weights = (struct rh_list){0};
	config.max_samples = 1;
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set));
	assert_int_equal(set.documents, 2);
	rh_dataset_free(&set);
	rh_text_free(&content);
	rh_text_free(&table);
}

static void test_dataset_info_names_files_columns_and_tags(void **state)
{
	(void)state;
	write_file(in_folder("dataset_info.json"),
	           "{\"qa\":{\"file_name\":\"qa.json\",\"columns\":{\"prompt\":\"q\",\"query\":\"more\",\"response\":\"a\"},\"num_"
	           "samples\":1},"
	           "\"talk\":{\"file_name\":\"talk.json\",\"formatting\":\"sharegpt\",\"columns\":{\"messages\":\"turns\"},"
	           "\"tags\":{\"role_tag\":\"who\",\"content_tag\":\"says\",\"user_tag\":\"A\",\"assistant_tag\":\"B\"}},"
	           "\"far\":{\"hf_hub_url\":\"org/set\"},\"pairs\":{\"file_name\":\"x\",\"ranking\":true}}");
	write_file(in_folder("qa.json"), "[{\"q\":\"i\",\"more\":\"in\",\"a\":\"o\"},{\"q\":\"second\",\"more\":\"\",\"a\":\"o\"}]");
	write_file(in_folder("talk.json"), "[{\"turns\":[{\"who\":\"A\",\"says\":\"q\"},{\"who\":\"B\",\"says\":\"r\"}]}]");
	write_file(in_folder("qa.jsonl"), "{\"prompt\":[" USER("i\\nin") "],\"completion\":[" ASSISTANT("o") "]}");
	write_file(in_folder("talk.jsonl"), "{\"messages\":[" USER("q") "," ASSISTANT("r") "]}");
	struct rh_config config = config_of(TEMPLATE_CHATML);
	char *names[] = {(char[]){"qa"}, (char[]){"talk"}}, *paths[] = {in_folder("qa.jsonl"), in_folder("talk.jsonl")};
	struct rh_dataset set, reference;
	config.train_file = (struct rh_list){paths, 2, 2};
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &reference));
	config.train_file = (struct rh_list){names, 2, 2};
	config.dataset_info = in_folder("dataset_info.json");
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set));
	assert_same(&set, &reference);
	rh_dataset_free(&set);
	rh_dataset_free(&reference);
	static const char *const faults[][2] = {
	        {"far", "hf download --repo-type dataset org/set"}, {"pairs", "preferences"}, {"none", "no data set is named 'none'"}};
	for (size_t i = 0; i < 3; i++) {
		names[0] = (char *)(uintptr_t)faults[i][0];
		assert_int_equal(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set), -EINVAL);
		if (!strstr(rh_error(-EINVAL), faults[i][1]))
			fail_msg("%s", rh_error(-EINVAL));
	}
}

static int load_pair(const char *train, const char *held_out, struct rh_config *config, struct rh_dataset set[2])
{
	static char *files[2];
	files[0] = in_folder("train");
	files[1] = in_folder("held");
	write_file(files[0], train);
	write_file(files[1], held_out);
	config->train_file = (struct rh_list){&files[0], 1, 1};
	config->validation_file = (struct rh_list){&files[1], 1, 1};
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, config, &tokenizer, &set[0]));
	check_ok(rh_dataset_load(RH_DATASET_VALIDATION, config, &tokenizer, &set[1]));
	int rc = rh_dataset_check(&set[0], &set[1], config);
	rh_dataset_free(&set[0]);
	rh_dataset_free(&set[1]);
	return rc;
}

static void test_faults_stop_and_are_allowed_by_name(void **state)
{
	(void)state;
	static const struct {
		enum rh_lint lint;
		const char *train, *held_out;
		int flags, max_length;
	} faults[] = {
	        {RH_LINT_UNTRAINED, "{\"prompt\":\"abcdefgh\",\"completion\":\"i\"}\n{\"prompt\":\"a\",\"completion\":\"i\"}",
	         "{\"text\":\"x\"}", 0, 6},
	        {RH_LINT_CUT_ANSWER, "{\"prompt\":\"abc\",\"completion\":\"ijklm\"}", "{\"text\":\"x\"}", 0, 6},
	        {RH_LINT_DUPLICATE, "{\"text\":\"a\"}\n{\"text\":\"a\"}", "{\"text\":\"x\"}", 0, 99},
	        {RH_LINT_OVERLAP, "{\"text\":\"a\"}\n{\"text\":\"b\"}", "{\"text\":\"b\"}", 0, 99},
	        {RH_LINT_NO_END, "{\"messages\":[" USER("q") "," ASSISTANT("r") "]}", "{\"text\":\"x\"}", 4 | ANSWERS_ONLY, 999},
	};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		struct rh_dataset set[2];
		struct rh_config config = config_of(faults[i].flags);
		if (faults[i].flags & 4)
			continue; /* no built-in template leaves turns open */
		config.max_length = faults[i].max_length;
		assert_int_equal(load_pair(faults[i].train, faults[i].held_out, &config, set), -EINVAL);
		const char *name = rh_lint_name(faults[i].lint), *line = rh_error(-EINVAL);
		if (!strstr(line, name) || !strstr(line, "--allow"))
			fail_msg("%s: %s", name, line);
		config.allow = 1 << faults[i].lint;
		check_ok(load_pair(faults[i].train, faults[i].held_out, &config, set));
	}
}

/* One row in a hundred is told of and stops nothing. */
static void test_few_faults_are_told_alone(void **state)
{
	(void)state;
	struct rh_text content = {0};
	struct rh_config config = config_of(0);
	struct rh_dataset set[2];
	for (int i = 0; i < 199; i++)
		check_ok(rh_text_printf(&content, "{\"text\":\"row %d\"}\n", i));
	check_ok(rh_text_printf(&content, "{\"text\":\"row 5\"}\n"));
	check_ok(load_pair(content.bytes, "{\"text\":\"x\"}", &config, set));
	check_ok(rh_text_printf(&content, "{\"text\":\"row 5\"}\n{\"text\":\"row 6\"}\n"));
	assert_int_equal(load_pair(content.bytes, "{\"text\":\"x\"}", &config, set), -EINVAL);
	rh_text_free(&content);
}

/* A split's two halves share copies of a row: seen as overlap. */
static void test_a_split_of_duplicates_overlaps(void **state)
{
	(void)state;
	struct rh_config config = config_of(0);
	struct rh_dataset train, held = {0};
	write_file(in_folder("twins"), "{\"text\":\"a\"}\n{\"text\":\"a\"}\n{\"text\":\"a\"}\n{\"text\":\"a\"}\n");
	check_ok(load_file(in_folder("twins"), config, NULL, &train));
	check_ok(rh_dataset_split(&train, 0.5, 1, &held));
	config.allow = 1 << RH_LINT_DUPLICATE;
	assert_int_equal(rh_dataset_check(&train, &held, &config), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "overlap"));
	assert_int_equal(train.finding[RH_LINT_OVERLAP].rows, 2);
	rh_dataset_free(&train);
	rh_dataset_free(&held);
}

static void test_refused_allocations_unwind(void **state)
{
	(void)state;
	static const char *const contents[] = {
	        "instruction,input,output\ni,in,o\n",
	        "[{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"r\"}],\"tools\":\"[]\"}]"};
	for (size_t i = 0; i < 2; i++) {
		char *path = in_folder("rows");
		write_file(path, contents[i]);
		int refused = 0;
		for (uint64_t n = 1; n < 500; n++) {
			struct rh_dataset set;
			rh_alloc_fail_nth(n);
			int rc = load_file(path, config_of(TEMPLATE_CHATML), NULL, &set);
			if (rh_alloc_fail_nth(0) < n) {
				check_ok(rc);
				rh_dataset_free(&set);
				break;
			}
			if (rc != -ENOMEM && rc)
				fail_msg("%s", rh_error(rc));
			if (!rc)
				rh_dataset_free(&set); /* memory that was only to be given back */
			refused++;
		}
		assert_true(refused > 10 && refused < 499);
	}
}

static void test_mutated_files_never_crash(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	struct rh_text bytes = {0};
	int read = 0;
	for (int trial = 0; trial < 6000; trial++) {
		const struct form_case *seed = &cases[check_random(&random) % (sizeof cases / sizeof *cases)];
		bytes.length = 0;
		check_ok(rh_text_append(&bytes, seed->content, strlen(seed->content)));
		for (uint32_t edits = check_random(&random) % 4; edits > 0 && bytes.length > 2; edits--) {
			size_t at = check_random(&random) % bytes.length;
			uint32_t what = check_random(&random) % 3;
			if (what == 0)
				bytes.bytes[at] = (char)check_random(&random);
			else if (what == 1)
				bytes.bytes[at] = "{}[]\":,\\\n\r\t;"[check_random(&random) % 12];
			else
				memmove(bytes.bytes + at, bytes.bytes + at + 1, --bytes.length - at);
		}
		struct rh_dataset set;
		char *path = in_folder("mutant");
		check_ok(rh_file_write_whole(path, bytes.bytes, bytes.length));
		int rc = load_file(path, config_of(seed->flags), seed->columns, &set);
		if (rc) {
			assert_int_equal(strncmp(rh_error(rc), path, strlen(path)), 0);
			continue;
		}
		assert_int_equal(set.document_start[set.documents], set.tokens);
		rh_dataset_free(&set);
		read++;
	}
	assert_true(read > 600);
	rh_text_free(&bytes);
}

int main(void)
{
	rh_log_quiet(1);
	snprintf(folder, sizeof folder, "/tmp/roundhouse-forms-%ld", (long)getpid());
	check_ok(rh_dir_make(folder));
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_form_gives_its_references_ids_and_masks),
	        cmocka_unit_test(test_compressed_files_give_the_same_rows),
	        cmocka_unit_test(test_long_rows_are_read_whole),
	        cmocka_unit_test(test_values_of_a_row_take_no_more_than_is_counted),
	        cmocka_unit_test(test_sharegpt_keeps_what_templates_are_given),
	        cmocka_unit_test(test_columns_that_are_not_read_are_told),
	        cmocka_unit_test(test_wrong_rows_are_named_with_file_line_and_mend),
	        cmocka_unit_test(test_function_calls_and_tools_become_what_templates_take),
	        cmocka_unit_test(test_several_files_are_weighed_and_limited),
	        cmocka_unit_test(test_dataset_info_names_files_columns_and_tags),
	        cmocka_unit_test(test_faults_stop_and_are_allowed_by_name),
	        cmocka_unit_test(test_few_faults_are_told_alone),
	        cmocka_unit_test(test_a_split_of_duplicates_overlaps),
	        cmocka_unit_test(test_refused_allocations_unwind),
	        cmocka_unit_test(test_mutated_files_never_crash),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	check_ok(rh_dir_remove(folder));
	return failed;
}
