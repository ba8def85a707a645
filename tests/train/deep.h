/* A rig whose model is deep: the reference model's configuration with another number of layers, random weights, and the reference's inputs.
 */
#ifndef RH_TESTS_TRAIN_DEEP_H
#define RH_TESTS_TRAIN_DEEP_H

#include "train/rig.h"

#include "core/file.h"
#include "core/json.h"

#include <unistd.h>

struct deep {
	struct rig rig;
	char dir[64];
};

static inline void deep_open(struct deep *deep, const char *model, int blocks)
{
	char path[256];
	json_t *json;
	rig_open(&deep->rig, model, NULL);
	snprintf(path, sizeof path, "tests/reference/models/%s/config.json", model);
	json = json_load_file(path, 0, NULL);
	assert_non_null(json);
	json_t *text = json_object_get(json, "text_config") ? json_object_get(json, "text_config") : json;
	assert_int_equal(json_object_set_new(text, "num_hidden_layers", json_integer(blocks)), 0);
	(void)json_object_del(text, "layer_types");
	if (json_integer_value(json_object_get(text, "num_kv_shared_layers"))) /* of both kinds, below and above those that lend */
		(void)json_object_set_new(text, "sliding_window_pattern", json_integer(2));
	(void)json_object_del(json, "mlp_layer_types");
	/* sizes of layers without a window, which a list has for each of them */
	json_t *of = json_object_iter_value(json_object_iter(json_object_get(text, "per_layer_config")));
	if (of) {
		(void)json_object_set(text, "global_head_dim", json_object_get(of, "head_dim"));
		(void)json_object_set(text, "num_global_key_value_heads", json_object_get(of, "num_key_value_heads"));
		(void)json_object_del(text, "per_layer_config");
	}
	snprintf(deep->dir, sizeof deep->dir, "%s/rh-deep-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(deep->dir));
	snprintf(path, sizeof path, "%s/config.json", deep->dir);
	assert_int_equal(json_dump_file(text, path, 0), 0);
	json_decref(json);
	deep->rig.config.model_name_or_path = NULL;
	deep->rig.config.config_name = deep->dir;
}

static inline void deep_close(struct deep *deep)
{
	rig_close(&deep->rig);
	check_ok(rh_dir_remove(deep->dir));
}

/* Many stages, so that there is much between them: of six blocks. */
static inline void deep_cut(struct deep *deep)
{
	static const int64_t forward[] = {2, 4, 5}, backward[] = {2, 3, 4, 5, 6};
	struct rh_config *config = &deep->rig.config;
	config->forward_cuts = (int64_t *)(uintptr_t)forward;
	config->forward_cut_count = sizeof forward / sizeof *forward;
	config->backward_cuts = (int64_t *)(uintptr_t)backward;
	config->backward_cut_count = sizeof backward / sizeof *backward;
}

#endif
