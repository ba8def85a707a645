/* The columns of a file: its flat list of schema elements, depth first, becomes a tree in which lists and maps are one node each. */
#include "core/alloc.h"
#include "parquet/parquet_internal.h"

#include <string.h>

enum { REQUIRED, OPTIONAL, REPEATED, VECTOR };
enum { DEPTH_MOST = 64 };

/* ConvertedType's numbers, and LogicalType's. */
enum {
	CONVERTED_UTF8,
	CONVERTED_MAP,
	CONVERTED_MAP_KEY_VALUE,
	CONVERTED_LIST,
	CONVERTED_ENUM,
	CONVERTED_DECIMAL,
	CONVERTED_DATE,
	CONVERTED_TIME_MILLIS,
	CONVERTED_TIME_MICROS,
	CONVERTED_TIMESTAMP_MILLIS,
	CONVERTED_TIMESTAMP_MICROS,
	CONVERTED_UINT_8,
	CONVERTED_UINT_64 = 14,
	CONVERTED_JSON = 19,
	CONVERTED_BSON = 20,
	CONVERTED_INTERVAL = 21
};
enum {
	LOGICAL_STRING = 1,
	LOGICAL_MAP,
	LOGICAL_LIST,
	LOGICAL_ENUM,
	LOGICAL_DECIMAL,
	LOGICAL_DATE,
	LOGICAL_TIME,
	LOGICAL_TIMESTAMP,
	LOGICAL_INTEGER = 10,
	LOGICAL_JSON = 12,
	LOGICAL_BSON = 13,
	LOGICAL_UUID = 14,
	LOGICAL_HALF = 15
};
enum { MILLI = 1000, MICRO = 1000000, NANO = 1000000000 };

struct element {
	char *name;
	int is_leaf;
	int64_t type, length, repetition, children, converted, scale;
	int logical;
	int64_t unit;    /* of a time: parts of a second */
	int is_unsigned; /* LOGICAL_INTEGER */
};

struct builder {
	struct rh_parquet *file;
	struct element *element; /* (elements) */
	size_t elements, next;
	struct rh_text path;
};

/* MILLIS, MICROS, NANOS: a union of empty structs. */
static int64_t read_unit(struct thrift *in)
{
	static const int64_t units[] = {0, MILLI, MICRO, NANO};
	int64_t unit = 0;
	for (struct thrift_field field = {0}; thrift_next(in, &field); thrift_skip(in, &field))
		unit = field.id <= 3 ? units[field.id] : 0;
	return unit;
}

/* The members of a logical type that matter: 1 scale (DECIMAL), 2 unit (TIME, TIMESTAMP), 2 is signed (INTEGER). */
static void read_logical_members(struct thrift *in, struct element *out)
{
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		int is_time = out->logical == LOGICAL_TIME || out->logical == LOGICAL_TIMESTAMP;
		if (out->logical == LOGICAL_DECIMAL && field.id == 1)
			out->scale = thrift_int(in, &field);
		else if (is_time && field.id == 2 && field.type == THRIFT_STRUCT)
			out->unit = read_unit(in);
		else if (out->logical == LOGICAL_INTEGER && field.id == 2)
			out->is_unsigned = !thrift_bool(in, &field);
		else
			thrift_skip(in, &field);
	}
}

static void read_logical(struct thrift *in, struct element *out)
{
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		out->logical = field.id;
		if (field.type == THRIFT_STRUCT)
			read_logical_members(in, out);
		else
			thrift_skip(in, &field);
	}
}

static char *copy_name(struct thrift *in, struct thrift_bytes name)
{
	char *copy = rh_alloc(name.length + 1, 1);
	if (copy && name.length)
		memcpy(copy, name.bytes, name.length);
	in->is_bad |= copy && strlen(copy) != name.length;
	return copy;
}

static int read_element(struct thrift *in, struct element *out)
{
	*out = (struct element){.converted = -1};
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		int64_t *const numbers[] = {NULL, &out->type,     &out->length,    &out->repetition,
		                            NULL, &out->children, &out->converted, &out->scale};
		if (field.id == 4 && !out->name) {
			if (!(out->name = copy_name(in, thrift_binary(in, &field))))
				return -ENOMEM;
		} else if (field.id < 8 && numbers[field.id]) {
			*numbers[field.id] = thrift_int(in, &field);
			out->is_leaf |= field.id == 1;
		} else if (field.id == 10 && field.type == THRIFT_STRUCT) {
			read_logical(in, out);
		} else {
			thrift_skip(in, &field);
		}
	}
	in->is_bad |= !out->name || out->children < 0 || (out->is_leaf && out->children);
	return 0;
}

static enum parquet_meaning meaning_of(const struct element *element, int64_t *unit)
{
	int64_t converted = element->converted;
	int logical = element->logical, is_bytes = element->type == PARQUET_BYTES;
	*unit = element->unit;
	if (logical == LOGICAL_JSON || converted == CONVERTED_JSON)
		return is_bytes ? MEANS_JSON : MEANS_NOTHING;
	if (logical == LOGICAL_STRING || logical == LOGICAL_ENUM || converted == CONVERTED_UTF8 || converted == CONVERTED_ENUM)
		return is_bytes ? MEANS_TEXT : MEANS_NOTHING;
	if (logical == LOGICAL_DECIMAL || converted == CONVERTED_DECIMAL)
		return MEANS_DECIMAL;
	if (logical == LOGICAL_HALF)
		return element->length == 2 ? MEANS_HALF : MEANS_NOTHING;
	if (element->type == PARQUET_INT32 && (logical == LOGICAL_DATE || converted == CONVERTED_DATE))
		return MEANS_DATE;
	if (element->type == PARQUET_INT32 || element->type == PARQUET_INT64) {
		if (!*unit && converted >= CONVERTED_TIME_MILLIS && converted <= CONVERTED_TIMESTAMP_MICROS)
			*unit = (converted - CONVERTED_TIME_MILLIS) % 2 ? MICRO : MILLI;
		if (*unit)
			return logical == LOGICAL_TIME || converted == CONVERTED_TIME_MILLIS || converted == CONVERTED_TIME_MICROS
			               ? MEANS_TIME
			               : MEANS_TIMESTAMP;
		return element->is_unsigned || (converted >= CONVERTED_UINT_8 && converted <= CONVERTED_UINT_64) ? MEANS_UNSIGNED
		                                                                                                 : MEANS_ITSELF;
	}
	int is_other = logical == LOGICAL_UUID || logical == LOGICAL_BSON || converted == CONVERTED_BSON || converted == CONVERTED_INTERVAL;
	return element->type == PARQUET_INT96 || element->type == PARQUET_FIXED_BYTES || is_other ? MEANS_NOTHING : MEANS_ITSELF;
}

static int add_leaf(struct builder *builder, const struct element *element, int definition, int repetition)
{
	struct rh_parquet *file = builder->file;
	if (element->type < 0 || element->type >= PARQUET_TYPES ||
	    (element->type == PARQUET_FIXED_BYTES && (element->length <= 0 || element->length > INT32_MAX)) || element->scale < 0 ||
	    element->scale > INT16_MAX)
		return parquet_fail_footer(file);
	int rc = rh_grow(&file->leaf, &file->leaf_capacity, file->leaves + 1, sizeof *file->leaf);
	if (rc)
		return rc;
	struct parquet_leaf *leaf = &file->leaf[file->leaves++];
	*leaf = (struct parquet_leaf){.path = rh_strdup(builder->path.bytes),
	                              .type = (enum parquet_type)element->type,
	                              .length = (int32_t)element->length,
	                              .scale = (int32_t)element->scale,
	                              .definition = definition,
	                              .repetition = repetition};
	leaf->meaning = meaning_of(element, &leaf->unit);
	return leaf->path ? 0 : -ENOMEM;
}

static int build(struct builder *builder, int definition, int repetition, int depth, int *out);

static int add_node(struct builder *builder, const char *name, int definition, int *out)
{
	struct rh_parquet *file = builder->file;
	int rc = rh_grow(&file->node, &file->node_capacity, file->nodes + 1, sizeof *file->node);
	if (rc)
		return rc;
	*out = (int)file->nodes++;
	file->node[*out] = (struct parquet_node){.name = rh_strdup(name),
	                                         .kind = PARQUET_STRUCT,
	                                         .definition = definition,
	                                         .child = -1,
	                                         .next = -1,
	                                         .leaf = (int)file->leaves};
	return file->node[*out].name ? 0 : -ENOMEM;
}

/* The `count` elements that come next, as children of `node`. */
static int build_children(struct builder *builder, int node, int64_t count, int definition, int repetition, int depth)
{
	struct rh_parquet *file = builder->file;
	int last = -1;
	for (int64_t i = 0; i < count; i++) {
		int child = -1, rc = build(builder, definition, repetition, depth + 1, &child);
		if (rc)
			return rc;
		if (last < 0)
			file->node[node].child = child;
		else
			file->node[last].next = child;
		last = child;
	}
	return 0;
}

/* Does the group `list` hold one repeated element, which is next? */
static int holds_repeated(const struct builder *builder, const struct element *list)
{
	return list->children == 1 && builder->next < builder->elements && builder->element[builder->next].repetition == REPEATED;
}

/* 1: the repeated element of a list is its item; 0: it only holds the item. These are parquet-format's rules for lists of older writers. */
static int is_item(const struct builder *builder, const struct element *list, const struct element *repeated)
{
	size_t length = strlen(list->name), inner = builder->next;
	if (repeated->is_leaf || repeated->children != 1 || !strcmp(repeated->name, "array"))
		return 1;
	if (inner < builder->elements && builder->element[inner].repetition == REPEATED)
		return 1;
	return !strncmp(repeated->name, list->name, length) && !strcmp(repeated->name + length, "_tuple");
}

/* What lies below an element that is there `definition` levels down: a leaf, a struct, a list, a map. */
static int build_content(struct builder *builder, const struct element *element, int definition, int repetition, int depth, int *out)
{
	struct rh_parquet *file = builder->file;
	int rc = add_node(builder, element->name, definition, out);
	if (rc)
		return rc;
	int node = *out, logical = element->logical;
	int is_list = logical == LOGICAL_LIST || element->converted == CONVERTED_LIST;
	int is_map = logical == LOGICAL_MAP || element->converted == CONVERTED_MAP || element->converted == CONVERTED_MAP_KEY_VALUE;
	if (element->is_leaf) {
		file->node[node].kind = PARQUET_LEAF;
		rc = add_leaf(builder, element, definition, repetition);
	} else if ((is_list || is_map) && holds_repeated(builder, element)) {
		const struct element *repeated = &builder->element[builder->next++];
		int64_t inner = repeated->children;
		int is_pairs = is_map && inner == 2, item = -1;
		file->node[node].kind = is_pairs ? PARQUET_MAP : PARQUET_LIST;
		file->node[node].repetition = repetition + 1;
		file->node[node].item = definition + 1;
		if (is_pairs || (inner == 1 && (is_map || !is_item(builder, element, repeated)))) {
			rc = build_children(builder, node, inner, definition + 1, repetition + 1, depth);
		} else {
			rc = build_content(builder, repeated, definition + 1, repetition + 1, depth + 1, &item);
			file->node[node].child = item;
		}
	} else {
		rc = build_children(builder, node, element->children, definition, repetition, depth);
	}
	if (rc)
		return rc;
	struct parquet_node *made = &file->node[node];
	made->leaves = (int)file->leaves - made->leaf;
	return made->leaves && (made->kind == PARQUET_LEAF || made->child >= 0) ? 0 : parquet_fail_footer(file);
}

/* The next element, as its repetition has it. */
static int build_repeated(struct builder *builder, const struct element *element, int definition, int repetition, int depth, int *out)
{
	if (element->repetition == OPTIONAL)
		return build_content(builder, element, definition + 1, repetition, depth, out);
	if (element->repetition != REPEATED)
		return build_content(builder, element, definition, repetition, depth, out);
	struct rh_parquet *file = builder->file;
	int child = -1, rc = add_node(builder, element->name, definition, out);
	if (rc)
		return rc;
	int node = *out;
	rc = build_content(builder, element, definition + 1, repetition + 1, depth + 1, &child);
	if (rc)
		return rc;
	struct parquet_node *made = &file->node[node];
	made->kind = PARQUET_LIST;
	made->repetition = repetition + 1;
	made->item = definition + 1;
	made->child = child;
	made->leaves = (int)file->leaves - made->leaf;
	return 0;
}

static int build(struct builder *builder, int definition, int repetition, int depth, int *out)
{
	if (builder->next >= builder->elements || depth > DEPTH_MOST)
		return parquet_fail_footer(builder->file);
	const struct element *element = &builder->element[builder->next++];
	if (element->repetition >= VECTOR)
		return rh_fail(-EINVAL, "%s: column '%.80s' has vectors of a fixed size, which are not read; write it as lists",
		               rh_file_path(builder->file->file), element->name);
	size_t length = builder->path.length;
	int rc = rh_text_printf(&builder->path, "%s%s", length ? "." : "", element->name);
	if (!rc)
		rc = build_repeated(builder, element, definition, repetition, depth, out);
	if (!rc) {
		builder->path.length = length;
		builder->path.bytes[length] = 0;
	}
	return rc;
}

int parquet_schema_read(struct rh_parquet *file, struct thrift *in, const struct thrift_field *field)
{
	struct builder builder = {.file = file};
	size_t count = thrift_list(in, field, THRIFT_STRUCT), capacity = 0;
	int rc = file->nodes ? parquet_fail_footer(file) : 0, root = -1;
	for (size_t i = 0; !rc && i < count && !in->is_bad; i++) {
		rc = rh_grow(&builder.element, &capacity, builder.elements + 1, sizeof *builder.element);
		if (!rc)
			rc = read_element(in, &builder.element[builder.elements++]);
	}
	if (!rc && (in->is_bad || !builder.elements || builder.element[0].is_leaf))
		rc = parquet_fail_footer(file);
	if (!rc && !builder.element[0].children)
		rc = rh_fail(-EINVAL, "%s: it has no columns", rh_file_path(file->file));
	if (!rc)
		rc = add_node(&builder, "", 0, &root);
	builder.next = 1;
	if (!rc)
		rc = build_children(&builder, root, builder.element[0].children, 0, 0, 0);
	if (!rc)
		file->node[root].leaves = (int)file->leaves;
	for (size_t i = 0; i < builder.elements; i++)
		rh_free(builder.element[i].name);
	rh_free(builder.element);
	rh_text_free(&builder.path);
	return rc;
}
