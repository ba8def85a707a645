/* Attention windows: one length for a model, and the layers that have it. */
#include "model/config_internal.h"

#include <string.h>

/* layer_types: a word for each layer. 1 if it is there. */
static int parse_layer_types(const json_t *json, const char *where, struct rh_model_config *out, int *said)
{
	const json_t *types = json_object_get(json, "layer_types");
	*said = json_is_array(types);
	if (!types || json_is_null(types))
		return 0;
	if (!*said || json_array_size(types) != (size_t)out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: 'layer_types' must be a list of %lld words, one for each layer", where,
		               (long long)out->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(types); i++) {
		const char *kind = json_string_value(json_array_get(types, i));
		if (!kind || (strcmp(kind, "full_attention") && strcmp(kind, "sliding_attention")))
			return rh_fail(-EINVAL, "%s: layer_types has '%s', which is not supported (full_attention, sliding_attention are)",
			               where, kind ? kind : "(no string)");
		out->layer[i].windowed = !strcmp(kind, "sliding_attention");
	}
	return 0;
}

/* Layers from `first` on but each `period`-th, counted from 1; period 0: no exception. */
static void mark(struct rh_model_config *out, int64_t first, int64_t period)
{
	for (int64_t i = first; i < out->num_hidden_layers; i++)
		out->layer[i].windowed = !period || (i + 1) % period != 0;
}

static int parse_upper(const json_t *json, const char *where, struct rh_model_config *out)
{
	int is_used = 0, said = 0;
	int64_t first = 28;
	int rc = rh_json_bool(json, "use_sliding_window", where, RH_JSON_OPTIONAL, &is_used);
	if (!rc)
		rc = rh_json_int(json, "max_window_layers", where, RH_JSON_OPTIONAL, &first);
	if (!rc)
		rc = parse_layer_types(json, where, out, &said);
	if (rc)
		return rc;
	if (!is_used)
		out->window = 0;
	if (!said && out->window)
		mark(out, first < 0 ? 0 : first, 0);
	return 0;
}

static int parse_period(const json_t *json, const char *where, struct rh_model_config *out)
{
	int said = 0;
	int64_t period = out->family->window_period;
	int rc = rh_json_int(json, "sliding_window_pattern", where, RH_JSON_OPTIONAL, &period);
	if (!rc && period < 1)
		rc = rh_fail(-EINVAL, "%s: 'sliding_window_pattern' is %lld; it must be positive", where, (long long)period);
	if (!rc)
		rc = parse_layer_types(json, where, out, &said);
	if (!rc && !said)
		mark(out, 0, period);
	return rc;
}

int config_parse_windows(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *said = json_object_get(json, "sliding_window");
	if (out->family->windows == RH_WINDOWS_NONE || out->num_hidden_layers > RH_MOST_LAYERS)
		return 0; /* too many: rh_model_config_check says so */
	out->window = out->family->window;
	int rc = rh_json_int(json, "sliding_window", where, RH_JSON_OPTIONAL, &out->window);
	if (!rc && json_is_integer(said) && out->window < 1)
		rc = rh_fail(-EINVAL, "%s: 'sliding_window' is %lld; it must be positive, or null for none", where, (long long)out->window);
	if (rc)
		return rc;
	if (json_is_null(said))
		out->window = 0;
	switch (out->family->windows) {
	case RH_WINDOWS_NONE:
		break;
	case RH_WINDOWS_ALL:
		mark(out, 0, 0);
		break;
	case RH_WINDOWS_UPPER:
		rc = parse_upper(json, where, out);
		break;
	case RH_WINDOWS_PERIOD:
		rc = parse_period(json, where, out);
		break;
	}
	return rc;
}
