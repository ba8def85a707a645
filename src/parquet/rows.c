/* Rows put together from the columns' entries. An entry of a leaf has two levels: how much of the path to it is there (definition), and
 * which list it goes on in (repetition). */
#include "core/alloc.h"
#include "core/minmax.h"
#include "parquet/parquet_internal.h"

#include <string.h>

/* The most memory for a row where the caller sets no limit. */
#define LIMIT_BYTES ((int64_t)4 << 30)

int rh_parquet_open(const char *path, struct rh_parquet **out)
{
	struct rh_parquet *file = rh_alloc(1, sizeof *file);
	if (!file)
		return -ENOMEM;
	int rc = rh_file_open(path, &file->file);
	if (!rc)
		rc = parquet_footer_read(file);
	if (!rc && !(file->column = rh_alloc(file->leaves, sizeof *file->column)))
		rc = -ENOMEM;
	for (size_t i = 0; !rc && i < file->leaves; i++)
		file->column[i].leaf = &file->leaf[i];
	if (rc)
		rh_parquet_close(file);
	else
		*out = file;
	return rc;
}

void rh_parquet_close(struct rh_parquet *file)
{
	if (!file)
		return;
	for (size_t i = 0; i < file->leaves; i++) {
		if (file->column)
			parquet_column_end(file, &file->column[i]);
		rh_free(file->leaf[i].path);
	}
	for (size_t i = 0; i < file->nodes; i++)
		rh_free(file->node[i].name);
	parquet_buffer_free(file, &file->packed);
	rh_free(file->column);
	rh_free(file->leaf);
	rh_free(file->node);
	rh_free(file->group);
	rh_free(file->chunk);
	rh_file_close(file->file);
	rh_free(file);
}

int parquet_count(struct rh_parquet *file, int64_t value_bytes, int64_t text_bytes)
{
	file->value_bytes += value_bytes;
	file->text_bytes += text_bytes;
	return parquet_check_room(file);
}

static int fail_levels(const struct rh_parquet *file, const struct parquet_node *node)
{
	return parquet_fail_column(file, &file->column[node->leaf], "its parts do not belong together");
}

/* The node is null, or an empty list: each leaf below it has one entry that says so, with the same level. */
static int skip(struct rh_parquet *file, const struct parquet_node *node, int definition)
{
	for (int leaf = node->leaf; leaf < node->leaf + node->leaves; leaf++) {
		if (file->column[leaf].is_over || file->column[leaf].definition != definition)
			return fail_levels(file, node);
		int rc = parquet_column_advance(file, &file->column[leaf]);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_node(struct rh_parquet *file, const struct parquet_node *node, json_t **out);

/* A member of an object. What a struct lacks is left out; of a row and of a map it is null. */
static int set_member(struct rh_parquet *file, json_t *object, const char *name, json_t *value)
{
	if (!value)
		return rh_fail(-ENOMEM, "%s: out of host memory", rh_file_path(file->file));
	int rc = parquet_count(file, RH_JSON_MEMBER_BYTES + (int64_t)strlen(name), 0);
	if (rc)
		return rc;
	return json_object_set(object, name, value) ? rh_fail(-EINVAL, "%s: the name '%.80s' is not UTF-8", rh_file_path(file->file), name)
	                                            : 0;
}

static int read_struct(struct rh_parquet *file, const struct parquet_node *node, json_t *object)
{
	int is_row = node == file->node;
	for (int at = node->child; at >= 0; at = file->node[at].next) {
		const struct parquet_node *child = &file->node[at];
		json_t *value = NULL;
		int rc = read_node(file, child, &value);
		if (!rc && (is_row || !json_is_null(value)))
			rc = set_member(file, object, child->name, value);
		json_decref(value);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_item(struct rh_parquet *file, const struct parquet_node *list, json_t *array)
{
	json_t *value = NULL;
	int rc = read_node(file, &file->node[list->child], &value);
	if (!rc)
		rc = parquet_count(file, RH_JSON_VALUE_BYTES, 0);
	if (!rc && (!value || json_array_append(array, value)))
		rc = rh_fail(-ENOMEM, "%s: out of host memory", rh_file_path(file->file));
	json_decref(value);
	return rc;
}

static int read_pair(struct rh_parquet *file, const struct parquet_node *map, json_t *object)
{
	const struct parquet_node *key = &file->node[map->child];
	json_t *name = NULL, *value = NULL;
	int rc = read_node(file, key, &name);
	if (!rc)
		rc = read_node(file, &file->node[key->next], &value);
	if (!rc && !json_is_string(name))
		rc = rh_fail(-EINVAL, "%s (row %lld): a map's key is no text, which JSON has no form for", rh_file_path(file->file),
		             (long long)file->row + 1);
	if (!rc)
		rc = set_member(file, object, json_string_value(name), value);
	json_decref(name);
	json_decref(value);
	return rc;
}

/* Do all leaves of the list say that another item follows? 1, 0, or -EINVAL where they differ. An entry that goes on in a list within this
 * one, which has ended, is found where the next row begins. */
static int goes_on(const struct rh_parquet *file, const struct parquet_node *list)
{
	int first = file->column[list->leaf].repetition == list->repetition;
	for (int leaf = list->leaf; leaf < list->leaf + list->leaves; leaf++)
		if ((file->column[leaf].repetition == list->repetition) != first)
			return fail_levels(file, list);
	return first;
}

static int read_items(struct rh_parquet *file, const struct parquet_node *list, json_t *out)
{
	int more = 1;
	while (more > 0) {
		for (int leaf = list->leaf; leaf < list->leaf + list->leaves; leaf++)
			if (file->column[leaf].definition < list->item)
				return fail_levels(file, list);
		int rc = list->kind == PARQUET_MAP ? read_pair(file, list, out) : read_item(file, list, out);
		if (rc)
			return rc;
		more = goes_on(file, list);
	}
	return more;
}

static int read_leaf(struct rh_parquet *file, struct parquet_column *column, json_t **out)
{
	int rc = parquet_cell_read(file, column, out);
	return rc ? rc : parquet_column_advance(file, column);
}

/* *out is made in any case, and is the caller's; NULL where that failed. */
static int read_node(struct rh_parquet *file, const struct parquet_node *node, json_t **out)
{
	struct parquet_column *first = &file->column[node->leaf];
	if (first->is_over)
		return parquet_fail_column(file, first, "it has fewer values than there are rows");
	if (first->definition < node->definition) {
		*out = json_null();
		return skip(file, node, first->definition);
	}
	if (node->kind == PARQUET_LEAF)
		return read_leaf(file, first, out);
	*out = node->kind == PARQUET_LIST ? json_array() : json_object();
	int rc = *out ? parquet_count(file, RH_JSON_CONTAINER_BYTES, 0)
	              : rh_fail(-ENOMEM, "%s: out of host memory", rh_file_path(file->file));
	if (rc)
		return rc;
	if (node->kind == PARQUET_STRUCT)
		return read_struct(file, node, *out);
	return first->definition < node->item ? skip(file, node, first->definition) : read_items(file, node, *out);
}

static int begin_group(struct rh_parquet *file)
{
	const struct parquet_group *group = &file->group[file->next_group++];
	int rc = 0;
	file->group_rows = group->rows;
	for (size_t i = 0; !rc && i < file->leaves; i++)
		rc = parquet_column_begin(file, &file->column[i], &file->chunk[group->chunk + i]);
	return rc;
}

/* Nothing may be left, and each row begins with a new list. */
static int end_group(struct rh_parquet *file)
{
	for (size_t i = 0; i < file->leaves; i++) {
		if (!file->column[i].is_over)
			return parquet_fail_column(file, &file->column[i], "it has more values than there are rows");
		parquet_column_end(file, &file->column[i]);
	}
	parquet_buffer_free(file, &file->packed);
	return 0;
}

static int check_row_begins(const struct rh_parquet *file)
{
	for (size_t i = 0; i < file->leaves; i++)
		if (file->column[i].repetition)
			return parquet_fail_column(file, &file->column[i], "a row begins within a list");
	return 0;
}

int rh_parquet_next(struct rh_parquet *file, int64_t room, json_t **row)
{
	json_t *made = NULL;
	file->limit = room ? room : LIMIT_BYTES;
	file->value_bytes = file->text_bytes = 0;
	file->peak_bytes = file->buffer_bytes;
	while (!file->group_rows) {
		int rc = file->next_group ? end_group(file) : 0;
		if (rc || file->next_group == file->groups)
			return rc;
		rc = begin_group(file);
		if (rc)
			return rc;
	}
	int rc = check_row_begins(file);
	if (!rc)
		rc = read_node(file, file->node, &made);
	if (rc) {
		json_decref(made);
		return rc;
	}
	file->group_rows--;
	file->row++;
	*row = made;
	return 1;
}

/* Texts that are put together from the one before, or from bytes that lie apart. */
static int64_t scratch_bytes(const struct rh_parquet *file)
{
	int64_t bytes = 0;
	for (size_t i = 0; i < file->leaves; i++)
		bytes += (int64_t)file->column[i].values.text.capacity;
	return bytes;
}

int64_t rh_parquet_row_bytes(const struct rh_parquet *file)
{
	return file->peak_bytes + scratch_bytes(file) + file->value_bytes + file->text_bytes;
}

int64_t rh_parquet_held_bytes(const struct rh_parquet *file)
{
	return file->buffer_bytes + scratch_bytes(file) + file->value_bytes;
}

int64_t rh_parquet_row(const struct rh_parquet *file)
{
	return file->row;
}
