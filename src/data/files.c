/* Which files an item of train_file means: one, those below a folder, or those that a pattern matches. */
#include "data/files.h"
#include "core/alloc.h"
#include "core/glob.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static int ends_with(const char *name, size_t length, const char *ending)
{
	size_t bytes = strlen(ending);
	return length > bytes && !strncasecmp(name + length - bytes, ending, bytes);
}

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

enum data_file data_file_of(const char *path)
{
	static const char *const rows[] = {".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet"};
	static const char *const documents[] = {".txt", ".md"};
	static const char *const packed[] = {".gz", ".zst"};
	static const char *const others[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
	                                     "state.json"}; /* of datasets */
	const char *name = name_of(path);
	size_t length = strlen(name);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (!strcmp(name, others[i]))
			return DATA_FILE_OTHER;
	for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
		length -= ends_with(name, length, packed[i]) ? strlen(packed[i]) : 0;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (ends_with(name, length, rows[i]))
			return DATA_FILE_ROWS;
	for (size_t i = 0; i < sizeof documents / sizeof *documents; i++)
		if (ends_with(name, length, documents[i]))
			return DATA_FILE_DOCUMENT;
	return DATA_FILE_OTHER;
}

/* What a data set's folder says of itself, which is no row. */
static int is_about_data(const char *path)
{
	return !strncasecmp(name_of(path), "readme", strlen("readme")) || !strncasecmp(name_of(path), "license", strlen("license"));
}

/* Keeps the files of a kind. */
static void keep(struct rh_names *names, enum data_file kind)
{
	size_t kept = 0;
	for (size_t i = 0; i < names->count; i++)
		if (data_file_of(names->name[i]) == kind)
			names->name[kept++] = names->name[i];
		else
			rh_free(names->name[i]);
	names->count = kept;
}

/* The first file of a kind; NULL: none. */
static const char *first_of(const struct rh_names *names, enum data_file kind)
{
	for (size_t i = 0; i < names->count; i++)
		if (data_file_of(names->name[i]) == kind && (kind == DATA_FILE_ROWS || !is_about_data(names->name[i])))
			return names->name[i];
	return NULL;
}

/* 1: a part of the path behind its first `base` bytes begins with the word. */
static int has_word(const char *path, size_t base, const char *word)
{
	size_t length = strlen(word);
	for (const char *part = path + base; part; part = strchr(part, '/')) {
		part += *part == '/';
		if (!strncasecmp(part, word, length) && !isalnum((unsigned char)part[length]))
			return 1;
	}
	return 0;
}

/* A folder with files to train on and files to evaluate on, by their names as the Hub has them. */
static int refuse_splits(const char *folder, const struct rh_names *names)
{
	static const char *const held_out[] = {"test", "validation", "valid", "val", "dev", "eval"};
	const char *train = NULL, *other = NULL;
	size_t base = strlen(folder);
	for (size_t i = 0; i < names->count; i++) {
		train = !train && has_word(names->name[i], base, "train") ? names->name[i] : train;
		for (size_t w = 0; !other && w < sizeof held_out / sizeof *held_out; w++)
			other = has_word(names->name[i], base, held_out[w]) ? names->name[i] : NULL;
	}
	if (!train || !other)
		return 0;
	return rh_fail(-EINVAL,
	               "%s: the folder holds rows to train on and others (%s, %s); name those that you mean by a pattern, such as "
	               "'%s/**/train*'",
	               folder, name_of(train), name_of(other), folder);
}

/* A model's folder, or one above it, whose JSON files are no rows. */
static int refuse_model(const char *folder, const struct rh_names *names)
{
	for (size_t i = 0; i < names->count; i++) {
		const char *name = name_of(names->name[i]);
		if (ends_with(name, strlen(name), ".safetensors") || ends_with(name, strlen(name), ".gguf"))
			return rh_fail(-EINVAL, "%s: a model lies there (%s); name the files or the folder of the rows", folder, name);
	}
	return 0;
}

static int fail_empty(const char *folder, const struct rh_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		if (ends_with(names->name[i], strlen(names->name[i]), ".arrow"))
			return rh_fail(-EINVAL,
			               "%s: Arrow is not read; convert it: python3 -c \"import datasets; "
			               "datasets.load_from_disk('%s').to_parquet('rows.parquet')\"",
			               folder, folder);
	return rh_fail(-EINVAL,
	               "%s: the folder holds no rows (.jsonl, .json, .csv, .tsv, .parquet) and no documents (.txt, .md); files of other "
	               "names are taken by their paths or by a pattern",
	               folder);
}

static int find_in_folder(const char *folder, struct rh_names *out)
{
	int rc = rh_glob(folder, "**", out);
	if (rc)
		return rc;
	rc = refuse_model(folder, out);
	if (rc)
		goto out;
	const char *rows = first_of(out, DATA_FILE_ROWS);
	const char *document = first_of(out, DATA_FILE_DOCUMENT);
	if (rows && document)
		rc = rh_fail(
		        -EINVAL,
		        "%s: the folder holds rows (%s) and documents (%s); name those that you mean by a pattern, such as '%s/**/*%s'",
		        folder, name_of(rows), name_of(document), folder, strrchr(name_of(rows), '.'));
	else if (!rows && !document)
		rc = fail_empty(folder, out);
	if (!rc) {
		keep(out, rows ? DATA_FILE_ROWS : DATA_FILE_DOCUMENT);
		rc = refuse_splits(folder, out);
	}
out:
	if (rc)
		rh_names_free(out);
	return rc;
}

int data_files_find(const char *path, struct rh_names *out)
{
	*out = (struct rh_names){0};
	if (rh_dir_exists(path))
		return find_in_folder(path, out);
	if (rh_glob_is_pattern(path) && !rh_file_exists(path)) {
		int rc = rh_glob("", path, out);
		return rc || out->count ? rc : rh_fail(-EINVAL, "%s: no file matches the pattern", path);
	}
	int rc = rh_grow(&out->name, &out->capacity, 1, sizeof *out->name); /* whether it is there is found when it is opened */
	if (!rc && !(out->name[0] = rh_strdup(path)))
		rc = -ENOMEM;
	out->count = !rc;
	if (rc)
		rh_names_free(out);
	return rc;
}
