/* The sources of the tree, file after file: what the tests of the house read. */
#ifndef RH_TESTS_HOUSE_TREE_H
#define RH_TESTS_HOUSE_TREE_H

#include "check.h"

#include "core/file.h"

#include <dirent.h>
#include <string.h>

enum { PATH_BYTES = 512 };

/* `text` may be changed. */
typedef void tree_visit(const char *path, char *text);

static inline int tree_is_source(const char *name)
{
	static const char *const ends[] = {".c", ".h", ".cu", ".cuh", ".cpp"};
	const char *dot = strrchr(name, '.');
	for (size_t i = 0; dot && i < sizeof ends / sizeof ends[0]; i++)
		if (!strcmp(dot, ends[i]))
			return 1;
	return 0;
}

static inline void tree_read(const char *path, tree_visit *visit)
{
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	char *text = calloc(map.length + 1, 1);
	assert_non_null(text);
	memcpy(text, map.bytes, map.length);
	rh_bytes_free(&map);
	visit(path, text);
	free(text);
}

/* All sources below `dir`; how many. */
static inline int tree_walk(const char *dir, tree_visit *visit)
{
	DIR *stream = opendir(dir);
	int files = 0;
	for (struct dirent *entry; stream && (entry = readdir(stream));) {
		char path[PATH_BYTES];
		if (entry->d_name[0] == '.')
			continue;
		assert_true(snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) < PATH_BYTES);
		if (rh_dir_exists(path)) {
			files += tree_walk(path, visit);
		} else if (tree_is_source(entry->d_name)) {
			tree_read(path, visit);
			files++;
		}
	}
	if (stream)
		closedir(stream);
	return files;
}

/* All sources below these folders. */
static inline int tree_walk_all(const char *const *roots, size_t count, tree_visit *visit)
{
	int files = 0;
	for (size_t i = 0; i < count; i++)
		files += tree_walk(roots[i], visit);
	return files;
}

/* The next line of *text without its end, or NULL; *text goes on behind it. */
static inline char *tree_line(char **text)
{
	char *line = *text, *end = line ? strchr(line, '\n') : NULL;
	if (end)
		*end = 0;
	*text = end ? end + 1 : NULL;
	return line;
}

#endif
