/* A folder with a model, rows and room for configurations; loading them, and being refused. */
#ifndef RH_TESTS_CONFIG_PLACE_H
#define RH_TESTS_CONFIG_PLACE_H

#include "check.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { ARGS_MAX = 24 };

/* A folder with a model, rows and room for configurations. */
struct place {
	char dir[32];
	char *yaml;
};

static inline int place_make(void **state)
{
	struct place *place = calloc(1, sizeof *place);
	assert_non_null(place);
	strcpy(place->dir, "/tmp/rh-config-XXXXXX");
	assert_non_null(mkdtemp(place->dir));
	assert_int_equal(chdir(place->dir), 0);
	check_ok(rh_dir_make("model"));
	check_ok(rh_dir_make("adapter"));
	check_ok(rh_file_write_whole("adapter/adapter_config.json", "{}", 2));
	check_ok(rh_dir_make("out/checkpoint-5"));
	check_ok(rh_file_write_whole("train.jsonl", "", 0));
	check_ok(rh_file_write_whole("test.jsonl", "", 0));
	rh_log_quiet(1);
	*state = place;
	return 0;
}

static inline int place_remove(void **state)
{
	struct place *place = *state;
	assert_int_equal(chdir("/"), 0);
	check_ok(rh_dir_remove(place->dir));
	free(place);
	return 0;
}

/* `words` split at spaces; 'x y' keeps its space. */
static inline int split(char *words, char **argv)
{
	int argc = 0;
	for (char *at = words; *at;) {
		while (*at == ' ')
			at++;
		if (!*at)
			break;
		char end = *at == '\'' ? '\'' : ' ';
		at += end == '\'';
		assert_true(argc < ARGS_MAX);
		argv[argc++] = at;
		while (*at && *at != end)
			at++;
		if (*at)
			*at++ = 0;
	}
	return argc;
}

/* Loads yaml (NULL: no file) and flags for `verb`. */
static inline int load_verb(const char *verb, const char *yaml, const char *flags, struct rh_config *config)
{
	char *argv[ARGS_MAX + 1], words[1024], path[] = "c.yaml";
	int argc = 0;
	if (yaml) {
		check_ok(rh_file_write_whole("c.yaml", yaml, strlen(yaml)));
		argv[argc++] = path;
	}
	snprintf(words, sizeof words, "%s", flags ? flags : "");
	argc += split(words, argv + argc);
	return rh_config_load(verb, argc, argv, NULL, config);
}

static const char base_flags[] = " --model_name_or_path model --train_file train.jsonl --output_dir out";

static inline int load(const char *yaml, const char *flags, struct rh_config *config)
{
	char all[1024];
	snprintf(all, sizeof all, "%s%s", flags ? flags : "", base_flags);
	return load_verb("train", yaml, all, config);
}

/* Refused, in one line, with these words in it (check_has): the place, the key, its value and the mend. */
static inline void refused_by(const char *verb, const char *yaml, const char *flags, const char *words)
{
	struct rh_config config;
	int rc = load_verb(verb, yaml, flags, &config);
	if (rc >= 0) {
		print_error("taken: %s | %s\n", yaml ? yaml : "", flags ? flags : "");
		fail();
	}
	const char *line = rh_error(rc);
	if (!check_has(line, words) || strchr(line, '\n')) {
		print_error("line: %s\nwanted: %s\n", line, words);
		fail();
	}
	assert_null(config.output_dir);
}

static inline void refused(const char *yaml, const char *flags, const char *words)
{
	char all[1024];
	snprintf(all, sizeof all, "%s%s", flags ? flags : "", base_flags);
	refused_by("train", yaml, all, words);
}

#endif
