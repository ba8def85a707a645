/* YAML documents of fields, by tables: hardware profiles. A key that no table has is an error with its line. */
#include "config/fields_internal.h"

#include "config/config_internal.h"
#include "core/alloc.h"
#include "core/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TREE_MAX_BYTES = 1 << 20, FIELDS_MOST = 64 };

int config_tree_fail(const struct config_tree *tree, const yaml_node_t *at, const char *format, ...)
{
	char text[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	return rh_fail(-EINVAL, "%s:%zu: %s", tree->path, at->start_mark.line + 1, text);
}

/* One document whose root is a mapping, *root. -EINVAL names file and line; nothing is to be closed then. */
static int open_tree(const char *bytes, size_t length, const char *path, struct config_tree *out, yaml_node_t **root)
{
	yaml_parser_t parser;
	*out = (struct config_tree){.path = path};
	if (length > TREE_MAX_BYTES)
		return rh_fail(-EINVAL, "%s: %zu bytes are more than such a file has; is it the right file?", path, length);
	if (!yaml_parser_initialize(&parser))
		return rh_fail(-ENOMEM, "%s: out of host memory while reading it", path);
	yaml_parser_set_input_string(&parser, (const unsigned char *)bytes, length);
	int loaded = yaml_parser_load(&parser, &out->document), rc = 0;
	if (!loaded && parser.error == YAML_MEMORY_ERROR)
		rc = rh_fail(-ENOMEM, "%s: out of host memory while reading it", path);
	else if (!loaded)
		rc = rh_fail(-EINVAL, "%s:%zu: not valid YAML: %s", path, parser.problem_mark.line + 1,
		             parser.problem ? parser.problem : "cannot be parsed");
	yaml_parser_delete(&parser);
	if (rc)
		return rc;
	*root = yaml_document_get_root_node(&out->document);
	if (*root && (*root)->type == YAML_MAPPING_NODE)
		return 0;
	yaml_document_delete(&out->document);
	return rh_fail(-EINVAL, "%s: expected lines of the form key: value", path);
}

int config_document_parse(const char *bytes, size_t length, const char *path, config_document_fill *fill, void *out)
{
	struct config_tree tree;
	yaml_node_t *root = NULL;
	int rc = open_tree(bytes, length, path, &tree, &root);
	if (rc)
		return rc;
	rc = fill(&tree, root, out);
	yaml_document_delete(&tree.document);
	return rc;
}

int config_document_read(const char *path, config_document_fill *fill, void *out)
{
	struct rh_bytes file;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	rc = config_document_parse(file.bytes, file.length, path, fill, out);
	rh_bytes_free(&file);
	return rc;
}

static int set_field(const struct config_tree *tree, const struct config_field *field, yaml_node_t *value, void *out)
{
	char *at = (char *)out + field->offset;
	if (field->type == FIELD_NODE) {
		memcpy(at, &value, sizeof value);
		return 0;
	}
	if (value->type != YAML_SCALAR_NODE)
		return config_tree_fail(tree, value, "%s: expected %s", field->name, field->type == FIELD_TEXT ? "text" : "a number");
	const char *text = (const char *)value->data.scalar.value;
	if (field->type == FIELD_TEXT) {
		char *copy = rh_strdup(text);
		memcpy(at, &copy, sizeof copy);
		return copy ? 0 : rh_fail(-ENOMEM, "%s: out of host memory while reading it", tree->path);
	}
	int rc;
	if (field->type == FIELD_REAL) {
		double real = 0;
		rc = config_parse_real(text, &real);
		if (!rc)
			rc = real < field->least || real > field->most ? -EINVAL : 0;
		memcpy(at, &real, sizeof real);
	} else {
		int64_t whole = 0;
		rc = field->type == FIELD_BYTES ? config_parse_size(text, &whole) : config_parse_integer(text, &whole);
		if (!rc)
			rc = (double)whole < field->least || (double)whole > field->most ? -EINVAL : 0;
		memcpy(at, &whole, sizeof whole);
	}
	return rc ? config_tree_fail(tree, value, "%s: '%s' is not a %s from %g to %g", field->name, config_show(text).text,
	                             field->type == FIELD_REAL    ? "number"
	                             : field->type == FIELD_BYTES ? "size"
	                                                          : "whole number",
	                             field->least, field->most)
	          : 0;
}

int config_fields_read(struct config_tree *tree, const yaml_node_t *mapping, const struct config_field *fields, size_t count, void *out)
{
	unsigned char seen[FIELDS_MOST] = {0};
	RH_ASSERT(count <= FIELDS_MOST);
	if (mapping->type != YAML_MAPPING_NODE)
		return config_tree_fail(tree, mapping, "expected name: value pairs");
	for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start; pair < mapping->data.mapping.pairs.top; pair++) {
		yaml_node_t *key = yaml_document_get_node(&tree->document, pair->key);
		yaml_node_t *value = yaml_document_get_node(&tree->document, pair->value);
		if (key->type != YAML_SCALAR_NODE)
			return config_tree_fail(tree, key, "a key must be a plain word");
		const char *name = (const char *)key->data.scalar.value;
		size_t i = 0;
		while (i < count && strcmp(fields[i].name, name))
			i++;
		if (i == count)
			return config_tree_fail(tree, key, "unknown key '%s'", config_show(name).text);
		if (seen[i]++)
			return config_tree_fail(tree, key, "%s is given twice", name);
		int rc = set_field(tree, &fields[i], value, out);
		if (rc)
			return rc;
	}
	return 0;
}
