#include "config/layer_table.h"

#include "config/fields_internal.h"
#include "core/alloc.h"
#include "core/file.h"

#include <stddef.h>

struct table_draft {
	struct rh_layer_table table;
	yaml_node_t *layers;
};

#define MS(member)                                                                                                                         \
	{                                                                                                                                  \
#member, FIELD_REAL, offsetof(struct rh_layer_entry, member), 0, 1e9                                                       \
	}
#define FLOPS(member)                                                                                                                      \
	{                                                                                                                                  \
#member, FIELD_REAL, offsetof(struct rh_layer_entry, member), 0, 1e24                                                      \
	}
#define BYTES(member)                                                                                                                      \
	{                                                                                                                                  \
#member, FIELD_BYTES, offsetof(struct rh_layer_entry, member), 0, 0x1p50                                                   \
	}

static const struct config_field entry_fields[] = {{"count", FIELD_COUNT, offsetof(struct rh_layer_entry, count), 1, RH_LAYER_TABLE_MOST},
                                                   MS(forward_ms),
                                                   MS(recompute_ms),
                                                   MS(recompute_spared_ms),
                                                   MS(backward_ms),
                                                   MS(weight_gradient_ms),
                                                   FLOPS(forward_flops),
                                                   FLOPS(backward_flops),
                                                   BYTES(upload_bytes),
                                                   BYTES(gradient_bytes),
                                                   BYTES(optimizer_bytes),
                                                   BYTES(saved_bytes),
                                                   BYTES(boundary_bytes),
                                                   BYTES(forward_workspace_bytes),
                                                   BYTES(backward_workspace_bytes)};
static const struct config_field table_fields[] = {
        {"tokens", FIELD_COUNT, offsetof(struct table_draft, table.tokens), 0, 0x1p40},
        {"hop_ms", FIELD_REAL, offsetof(struct table_draft, table.hop_ms), 0, 1e9},
        {"first_trained", FIELD_COUNT, offsetof(struct table_draft, table.first_trained), 0, RH_LAYER_TABLE_MOST - 1},
        {"layers", FIELD_NODE, offsetof(struct table_draft, layers), 0, 0}};

static int read_entry(struct config_tree *tree, const yaml_node_t *node, struct rh_layer_table *table, int64_t *layers)
{
	int rc = rh_grow(&table->entry, &table->capacity, table->entries + 1, sizeof *table->entry);
	if (rc)
		return rc;
	struct rh_layer_entry *entry = &table->entry[table->entries++];
	*entry = (struct rh_layer_entry){.number = (int)table->entries,
	                                 .count = 1,
	                                 .forward_ms = -1,
	                                 .recompute_ms = -1,
	                                 .backward_ms = -1,
	                                 .weight_gradient_ms = -1,
	                                 .forward_flops = -1,
	                                 .backward_flops = -1};
	rc = config_fields_read(tree, node, entry_fields, sizeof entry_fields / sizeof entry_fields[0], entry);
	if (rc)
		return rc;
	int timed = entry->forward_ms >= 0 && entry->backward_ms >= 0, counted = entry->forward_flops >= 0 && entry->backward_flops >= 0;
	if (!timed && !counted)
		return config_tree_fail(tree, node, "a layer needs forward_ms and backward_ms, or forward_flops and backward_flops");
	*layers += entry->count;
	if (*layers > RH_LAYER_TABLE_MOST)
		return config_tree_fail(tree, node, "more than %d layers", RH_LAYER_TABLE_MOST);
	return 0;
}

static int fill(struct config_tree *tree, const yaml_node_t *root, void *to)
{
	struct rh_layer_table *out = to;
	out->name = rh_strdup(tree->path);
	if (!out->name)
		return -ENOMEM;
	struct table_draft draft = {.table = *out};
	int64_t layers = 0;
	int rc = config_fields_read(tree, root, table_fields, sizeof table_fields / sizeof table_fields[0], &draft);
	*out = draft.table;
	if (rc)
		return rc;
	if (!draft.layers || draft.layers->type != YAML_SEQUENCE_NODE)
		return config_tree_fail(tree, draft.layers ? draft.layers : root, "layers: expected a list of layers, bottom up");
	for (const yaml_node_item_t *item = draft.layers->data.sequence.items.start; !rc && item < draft.layers->data.sequence.items.top;
	     item++)
		rc = read_entry(tree, yaml_document_get_node(&tree->document, *item), out, &layers);
	if (!rc && out->first_trained >= layers)
		rc = config_tree_fail(tree, root, layers ? "first_trained: there are no more than %lld layers" : "layers: %lld is none",
		                      (long long)layers);
	return rc;
}

int rh_layer_table_parse(const char *bytes, size_t length, const char *path, struct rh_layer_table *out)
{
	*out = (struct rh_layer_table){0};
	int rc = config_document_parse(bytes, length, path, fill, out);
	if (rc)
		rh_layer_table_free(out);
	return rc;
}

int rh_layer_table_read(const char *path, struct rh_layer_table *out)
{
	*out = (struct rh_layer_table){0};
	int rc = config_document_read(path, fill, out);
	if (rc)
		rh_layer_table_free(out);
	return rc;
}

void rh_layer_table_free(struct rh_layer_table *table)
{
	rh_free(table->name);
	rh_free(table->entry);
	*table = (struct rh_layer_table){0};
}
