/* Inside src/config: mappings of names to numbers in a YAML tree, read into a struct by a table of fields. */
#ifndef RH_CONFIG_FIELDS_INTERNAL_H
#define RH_CONFIG_FIELDS_INTERNAL_H

#include "core/error.h"

#include <stdint.h>
#include <yaml.h>

enum config_field_type {
	FIELD_COUNT, /* int64_t: a whole number from `least` up */
	FIELD_REAL,  /* double: 0 or more */
	FIELD_BYTES, /* int64_t: bytes, "24GiB" */
	FIELD_TEXT,  /* char *: a fresh string (rh_free), NULL before */
	FIELD_NODE   /* yaml_node_t *: borrowed, for the caller to read */
};
struct config_field {
	const char *name;
	enum config_field_type type;
	size_t offset;
	double least, most;
};

/* A document as a tree. `path` names it in errors and is borrowed. */
struct config_tree {
	const char *path;
	yaml_document_t document;
};
/* The struct that a document says, one mapping at its root: -EINVAL names file and line. `fill` reads its root into *out, which holds what
 * is there without it and is its caller's to free, also on an error. config_document_read: from a file. */
typedef int config_document_fill(struct config_tree *tree, const yaml_node_t *root, void *out);
int config_document_parse(const char *bytes, size_t length, const char *path, config_document_fill *fill, void *out) RH_MUST;
int config_document_read(const char *path, config_document_fill *fill, void *out) RH_MUST;

/* Sets the fields that the mapping names; the others stay. -EINVAL: unknown key, key given twice, value out of range. */
int config_fields_read(struct config_tree *tree, const yaml_node_t *mapping, const struct config_field *fields, size_t count,
                       void *out) RH_MUST;
int config_tree_fail(const struct config_tree *tree, const yaml_node_t *at, const char *format, ...) RH_PRINTF(3, 4);

#endif
