#include "config/experiment.h"

#include "config/config_internal.h"
#include "config/fields_internal.h"
#include "core/alloc.h"
#include "core/file.h"

#include <stdlib.h>
#include <string.h>

struct experiment_draft {
	struct rh_experiment experiment;
	yaml_node_t *parameters, *trained, *block, *fixed, *published;
};
struct published_draft {
	struct rh_experiment experiment;
	yaml_node_t *async, *sync, *bubbles;
};
struct bubbles_draft {
	struct rh_experiment experiment;
	yaml_node_t *row[RH_BUBBLE_ROWS];
};
struct row_draft {
	double percent;
	char *stages, *forward, *backward;
};

#define AT(key, kind, type, member, least, most)                                                                                           \
	{                                                                                                                                  \
		key, kind, offsetof(struct type, member), least, most                                                                      \
	}
#define FIELDS(table) table, sizeof table / sizeof table[0]

static const struct config_field experiment_fields[] = {
        AT("name", FIELD_TEXT, experiment_draft, experiment.name, 0, 0),
        AT("layers", FIELD_TEXT, experiment_draft, experiment.layers, 0, 0),
        AT("device", FIELD_TEXT, experiment_draft, experiment.device, 0, 0),
        AT("batch", FIELD_COUNT, experiment_draft, experiment.batch, 1, 1 << 20),
        AT("sequence_length", FIELD_COUNT, experiment_draft, experiment.sequence_length, 1, 1 << 24),
        AT("hidden_size", FIELD_COUNT, experiment_draft, experiment.hidden_size, 1, 1 << 20),
        AT("parameters", FIELD_NODE, experiment_draft, parameters, 0, 0),
        AT("trained", FIELD_NODE, experiment_draft, trained, 0, 0),
        AT("saved_bytes_per_token", FIELD_BYTES, experiment_draft, experiment.saved_bytes_per_token, 0, 0x1p40),
        AT("block", FIELD_NODE, experiment_draft, block, 0, 0),
        AT("fixed_ms", FIELD_NODE, experiment_draft, fixed, 0, 0),
        AT("published", FIELD_NODE, experiment_draft, published, 0, 0),
};
static const struct config_field parameter_fields[] = {
        AT("block", FIELD_REAL, rh_experiment_parameters, block, 0, 1e15),
        AT("head", FIELD_REAL, rh_experiment_parameters, head, 0, 1e15),
        AT("embedding", FIELD_REAL, rh_experiment_parameters, embedding, 0, 1e15),
};
static const struct config_field block_fields[] = {
        AT("intermediate_size", FIELD_COUNT, rh_experiment_block, intermediate_size, 1, 1 << 20),
        AT("attention_heads", FIELD_COUNT, rh_experiment_block, attention_heads, 1, 1 << 16),
        AT("key_value_heads", FIELD_COUNT, rh_experiment_block, key_value_heads, 1, 1 << 16),
        AT("head_dim", FIELD_COUNT, rh_experiment_block, head_dim, 1, 1 << 16),
        AT("experts", FIELD_COUNT, rh_experiment_block, experts, 1, 1 << 16),
        AT("experts_per_token", FIELD_COUNT, rh_experiment_block, experts_per_token, 1, 1 << 16),
        AT("window", FIELD_COUNT, rh_experiment_block, window, 1, 1 << 24),
        AT("window_every", FIELD_COUNT, rh_experiment_block, window_every, 1, 64),
};
static const struct config_field fixed_fields[] = {
        AT("forward", FIELD_REAL, rh_experiment, fixed_forward_ms, 0, 1e9),
        AT("backward", FIELD_REAL, rh_experiment, fixed_backward_ms, 0, 1e9),
};
static const struct config_field published_fields[] = {
        AT("source", FIELD_TEXT, published_draft, experiment.source, 0, 0),
        AT("exception", FIELD_TEXT, published_draft, experiment.exception, 0, 0),
        AT("system", FIELD_TEXT, published_draft, experiment.system, 0, 0),
        AT("one_device_tokens_per_s", FIELD_REAL, published_draft, experiment.one_device_tokens_per_s, 0, 1e12),
        AT("longest_sequence", FIELD_COUNT, published_draft, experiment.longest_sequence, 0, 1 << 30),
        AT("async", FIELD_NODE, published_draft, async, 0, 0),
        AT("sync", FIELD_NODE, published_draft, sync, 0, 0),
        AT("bubbles", FIELD_NODE, published_draft, bubbles, 0, 0),
};
static const struct config_field run_fields[] = {
        AT("rounds", FIELD_COUNT, rh_published_run, rounds, 1, 4096),
        AT("round_micro_batches", FIELD_COUNT, rh_published_run, round_micro_batches, 1, 4096),
        AT("tokens_per_s", FIELD_REAL, rh_published_run, tokens_per_s, 0, 1e12),
};
static const char *const row_names[RH_BUBBLE_ROWS] = {"roundpipe", "looped-bfs", "interleaved-1f1b", "gpipe", "1f1b"};
static const struct config_field bubble_fields[] = {
        AT("micro_batches", FIELD_COUNT, bubbles_draft, experiment.bubble_micro_batches, 1, 4096),
        AT("rounds", FIELD_COUNT, bubbles_draft, experiment.bubble_rounds, 1, 4096),
        AT("devices", FIELD_COUNT, bubbles_draft, experiment.bubble_devices, 1, 64),
        AT("roundpipe", FIELD_NODE, bubbles_draft, row[RH_BUBBLE_ROUNDPIPE], 0, 0),
        AT("looped-bfs", FIELD_NODE, bubbles_draft, row[RH_BUBBLE_LOOPED], 0, 0),
        AT("interleaved-1f1b", FIELD_NODE, bubbles_draft, row[RH_BUBBLE_INTERLEAVED], 0, 0),
        AT("gpipe", FIELD_NODE, bubbles_draft, row[RH_BUBBLE_GPIPE], 0, 0),
        AT("1f1b", FIELD_NODE, bubbles_draft, row[RH_BUBBLE_1F1B], 0, 0),
};
static const struct config_field row_fields[] = {
        AT("percent", FIELD_REAL, row_draft, percent, 0, 100),
        AT("stages", FIELD_TEXT, row_draft, stages, 0, 0),
        AT("forward", FIELD_TEXT, row_draft, forward, 0, 0),
        AT("backward", FIELD_TEXT, row_draft, backward, 0, 0),
};
static const struct config_field peer_fields[] = {
        AT("name", FIELD_TEXT, rh_peer, name, 0, 0),
        AT("source", FIELD_TEXT, rh_peer, source, 0, 0),
        AT("link_bytes_per_s", FIELD_REAL, rh_peer, link_bytes_per_s, 0, 1e15),
        AT("host_bytes_per_s", FIELD_REAL, rh_peer, host_bytes_per_s, 0, 1e15),
        AT("weight_bytes", FIELD_REAL, rh_peer, weight_bytes, 0, 64),
        AT("gradient_bytes", FIELD_REAL, rh_peer, gradient_bytes, 0, 64),
        AT("held_bytes", FIELD_REAL, rh_peer, held_bytes, 0, 256),
        AT("taken_bytes", FIELD_REAL, rh_peer, taken_bytes, 0, 256),
        AT("updated_bytes", FIELD_REAL, rh_peer, updated_bytes, 0, 256),
        AT("published_bytes", FIELD_REAL, rh_peer, published_bytes, 0, 256),
};

const char *rh_bubble_row_name(enum rh_bubble_row row)
{
	return row_names[row];
}

/* "8x3 2x2 1": stages x blocks in each; a number alone is one stage of so many blocks. */
static int read_sizes(struct config_tree *tree, const yaml_node_t *at, const char *text, struct rh_stage_sizes *out)
{
	const char *t = text;
	while (*t) {
		char *end = NULL;
		long times = 1, size = strtol(t, &end, 10);
		if (end != t && *end == 'x') {
			t = end + 1;
			times = size;
			size = strtol(t, &end, 10);
		}
		if (end == t || (*end && *end != ' ') || size < 0 || size > 4096 || times < 1 ||
		    times > RH_EXPERIMENT_STAGES_MOST - out->count)
			return config_tree_fail(tree, at,
			                        "'%s': expected stages like 4x5 2x6: how many x blocks in each, %d in all at most",
			                        config_show(text).text, RH_EXPERIMENT_STAGES_MOST);
		while (times--)
			out->size[out->count++] = (int)size;
		t = end + strspn(end, " ");
	}
	return 0;
}

static int read_row(struct config_tree *tree, const yaml_node_t *node, struct rh_bubble *out)
{
	struct row_draft draft = {0};
	int rc = config_fields_read(tree, node, FIELDS(row_fields), &draft);
	const char *stages = draft.forward ? draft.forward : draft.stages;
	out->percent = draft.percent;
	if (!rc && (!stages || !draft.forward != !draft.backward || (draft.forward && draft.stages)))
		rc = config_tree_fail(tree, node, "expected stages, or forward and backward");
	rc = rc ? rc : read_sizes(tree, node, stages, &out->stages);
	if (!rc && draft.backward)
		rc = read_sizes(tree, node, draft.backward, &out->backward);
	rh_free(draft.stages);
	rh_free(draft.forward);
	rh_free(draft.backward);
	return rc;
}

static int read_bubbles(struct config_tree *tree, const yaml_node_t *node, struct rh_experiment *experiment)
{
	struct bubbles_draft draft = {.experiment = *experiment};
	int rc = config_fields_read(tree, node, FIELDS(bubble_fields), &draft);
	*experiment = draft.experiment;
	for (int i = 0; !rc && i < RH_BUBBLE_ROWS; i++)
		if (draft.row[i])
			rc = read_row(tree, draft.row[i], &experiment->bubble[i]);
	if (!rc && (!experiment->bubble_micro_batches || !experiment->bubble_rounds || !experiment->bubble_devices))
		rc = config_tree_fail(tree, node, "bubbles: micro_batches, rounds and devices are needed");
	return rc;
}

static int read_run(struct config_tree *tree, const yaml_node_t *node, struct rh_published_run *out)
{
	int rc = config_fields_read(tree, node, FIELDS(run_fields), out);
	if (!rc && (!out->rounds || !out->round_micro_batches))
		rc = config_tree_fail(tree, node, "rounds and round_micro_batches are needed");
	return rc;
}

static int read_published(struct config_tree *tree, const yaml_node_t *node, struct rh_experiment *experiment)
{
	struct published_draft draft = {.experiment = *experiment};
	int rc = config_fields_read(tree, node, FIELDS(published_fields), &draft);
	*experiment = draft.experiment;
	if (!rc && draft.async)
		rc = read_run(tree, draft.async, &experiment->async);
	if (!rc && draft.sync)
		rc = read_run(tree, draft.sync, &experiment->sync);
	if (!rc && draft.bubbles)
		rc = read_bubbles(tree, draft.bubbles, experiment);
	if (!rc && !experiment->system)
		rc = config_tree_fail(tree, node, "published: system is missing: the file that says how it moves its bytes");
	return rc;
}

/* `name` beside the file `path`. */
static int beside(const char *path, char **name)
{
	const char *slash = strrchr(path, '/');
	if (!*name || !slash || **name == '/')
		return 0;
	char *dir = rh_strdup(path), *joined = NULL;
	if (dir) {
		dir[slash - path] = 0;
		joined = rh_path_join(dir, *name);
	}
	rh_free(dir);
	if (!joined)
		return -ENOMEM;
	rh_free(*name);
	*name = joined;
	return 0;
}

static int fill(struct config_tree *tree, const yaml_node_t *root, void *to)
{
	struct rh_experiment *out = to;
	struct experiment_draft draft = {.experiment = *out};
	int rc = config_fields_read(tree, root, FIELDS(experiment_fields), &draft);
	*out = draft.experiment;
	if (!rc && (!out->layers || !out->device || !out->batch || !out->sequence_length || !out->hidden_size || !draft.parameters))
		rc = config_tree_fail(tree, root, "an experiment needs layers, device, batch, sequence_length, hidden_size and parameters");
	rc = rc ? rc : config_fields_read(tree, draft.parameters, FIELDS(parameter_fields), &out->parameters);
	out->trained = out->parameters;
	if (!rc && draft.trained) {
		out->trained = (struct rh_experiment_parameters){0};
		rc = config_fields_read(tree, draft.trained, FIELDS(parameter_fields), &out->trained);
	}
	if (!rc && draft.block)
		rc = config_fields_read(tree, draft.block, FIELDS(block_fields), &out->block);
	if (!rc && draft.fixed)
		rc = config_fields_read(tree, draft.fixed, FIELDS(fixed_fields), out);
	rc = rc || !draft.published ? rc : read_published(tree, draft.published, out);
	if (!rc && !out->name)
		rc = (out->name = rh_strdup(tree->path)) ? 0 : -ENOMEM;
	rc = rc ? rc : beside(tree->path, &out->layers);
	return rc ? rc : beside(tree->path, &out->system);
}

int rh_experiment_parse(const char *bytes, size_t length, const char *path, struct rh_experiment *out)
{
	*out = (struct rh_experiment){0};
	int rc = config_document_parse(bytes, length, path, fill, out);
	if (rc)
		rh_experiment_free(out);
	return rc;
}

int rh_experiment_read(const char *path, struct rh_experiment *out)
{
	*out = (struct rh_experiment){0};
	int rc = config_document_read(path, fill, out);
	if (rc)
		rh_experiment_free(out);
	return rc;
}

void rh_experiment_free(struct rh_experiment *experiment)
{
	rh_free(experiment->name);
	rh_free(experiment->layers);
	rh_free(experiment->device);
	rh_free(experiment->source);
	rh_free(experiment->exception);
	rh_free(experiment->system);
	*experiment = (struct rh_experiment){0};
}

static int has_key(struct config_tree *tree, const yaml_node_t *root, const char *name)
{
	for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
		const yaml_node_t *key = yaml_document_get_node(&tree->document, pair->key);
		if (key->type == YAML_SCALAR_NODE && !strcmp((const char *)key->data.scalar.value, name))
			return 1;
	}
	return 0;
}

static int look(struct config_tree *tree, const yaml_node_t *root, void *is)
{
	*(int *)is = has_key(tree, root, "layers") && has_key(tree, root, "batch");
	return 0;
}

int rh_experiment_is(const char *path)
{
	int is = 0;
	if (!rh_file_exists(path) || config_document_read(path, look, &is))
		rh_error_clear();
	return is;
}

static int fill_peer(struct config_tree *tree, const yaml_node_t *root, void *out)
{
	return config_fields_read(tree, root, FIELDS(peer_fields), out);
}

int rh_peer_read(const char *path, struct rh_peer *out)
{
	*out = (struct rh_peer){0};
	int rc = config_document_read(path, fill_peer, out);
	if (rc)
		rh_peer_free(out);
	return rc;
}

void rh_peer_free(struct rh_peer *peer)
{
	rh_free(peer->name);
	rh_free(peer->source);
	*peer = (struct rh_peer){0};
}
