/* From the run's keys to the modules and parameters that an adapter targets, in PEFT's words. */
#include "session/adapter_internal.h"

#include "core/alloc.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Linears of all kinds of layers: those of attention and of the MLP, then those of the gated delta rule. */
enum { LINEARS = RH_PROJS + RH_PROJ_MLP };
static const char *linear_name(const struct rh_family_names *names, int which)
{
	int is_delta = which >= RH_PROJS;
	return rh_proj_name(names, is_delta ? RH_MIXER_DELTA : RH_MIXER_ATTENTION, RH_MLP_SHARED, is_delta ? which - RH_PROJS : which);
}

/* Does PEFT take the names of experts' modules for those of parameters? */
static int has_expert_modules(const struct rh_model_config *model)
{
	return model->experts && model->family->names->experts && !model->family->names->experts_gate_up;
}

static int has_linear(const struct rh_model_config *model, int which)
{
	if (which == RH_PROJ_GATING)
		return model->experts != 0;
	return which < RH_PROJ_PER_LAYER_GATE || which >= RH_PROJS || model->layer_input_size;
}

/* The names that "all-linear" stands for. */
static size_t every_linear(const struct rh_model_config *model, const char *names[LINEARS + 1])
{
	const struct rh_family_names *all = model->family->names, *modules = rh_model_modules(model);
	size_t count = 0;
	for (int w = 0; w < LINEARS; w++)
		if (linear_name(modules, w) && has_linear(model, w))
			names[count++] = rh_last_part(linear_name(modules, w));
	if (has_expert_modules(model))
		names[count++] = strrchr(all->router, '.') + 1;
	return count;
}

static size_t own_targets(const struct rh_family *family)
{
	size_t count = 0;
	while (count < RH_FAMILY_KEYS && family->lora_targets[count])
		count++;
	return count;
}

static int copy_names(const char *const *names, size_t count, struct rh_peft_config *peft)
{
	peft->target = rh_alloc(count, sizeof *peft->target);
	int rc = peft->target ? 0 : -ENOMEM;
	for (; !rc && peft->targets < count; peft->targets += !rc)
		if (!(peft->target[peft->targets] = rh_strdup(names[peft->targets])))
			rc = -ENOMEM;
	return rc;
}

/* PEFT itself writes "all-linear" as the list of the names it found; so do we. */
static int list_targets(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_family *family = model->family;
	const struct rh_list *given = &config->lora_target_modules;
	const char *every[LINEARS + 1];
	peft->target_is_pattern = config->lora_targets_pattern;
	if (!config->lora_targets_given && config->lora_target_parameters.count)
		return 0;
	if (!config->lora_targets_given && own_targets(family))
		return copy_names(family->lora_targets, own_targets(family), peft);
	if (given->count == 1 && !strcmp(given->item[0], "all-linear"))
		return copy_names(every, every_linear(model, every), peft);
	return copy_names((const char *const *)given->item, given->count, peft);
}

/* A larger model's other parts have modules of the same names, which PEFT would adapt too: so the list becomes one expression. The head
 * lies beside the text model, and right inside the embedding, whose bare name tells PEFT that a tied table is meant, and the linear that
 * makes layers' own inputs. */
static int keep_to_text_model(const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_family_names *names = rh_model_names(model);
	const char *head = rh_last_part(names->head), *embedding = rh_last_part(names->embedding);
	const char *inputs = names->per_layer[2] ? rh_last_part(names->per_layer[2]) : "";
	struct rh_text text = {0};
	int rc = rh_text_printf(&text, "model\\.language_model\\..*\\.(?:"), count = 0;
	for (size_t i = 0; !rc && i < peft->targets; i++) {
		if (!strcmp(peft->target[i], head) || !strcmp(peft->target[i], embedding) || !strcmp(peft->target[i], inputs))
			continue;
		rc = count++ ? rh_text_printf(&text, "|") : 0;
		for (const char *at = peft->target[i]; !rc && *at; at++)
			rc = rh_text_printf(&text, *at == '.' ? "\\%c" : "%c", *at);
	}
	if (!rc)
		rc = rh_text_printf(&text, ")");
	for (size_t i = 0; !rc && i < peft->targets; i++) {
		if (!strcmp(peft->target[i], head))
			rc = rh_text_printf(&text, "|%s", head);
		else if (!strcmp(peft->target[i], embedding))
			rc = rh_text_printf(&text, "|(?:model\\.language_model\\.)?%s", embedding);
		else if (!strcmp(peft->target[i], inputs))
			rc = rh_text_printf(&text, "|model\\.language_model\\.%s", inputs);
	}
	if (rc) {
		rh_text_free(&text);
		return rc;
	}
	for (size_t i = 0; i < peft->targets; i++)
		rh_free(peft->target[i]);
	peft->target[0] = text.bytes;
	peft->targets = 1;
	peft->target_is_pattern = 1;
	return 0;
}

/* Names that a family's experts and router have in its files, where they are modules, and the parameters that transformers makes of them:
 * PEFT takes the one for the other. */
static const struct {
	const char *module, *parameter;
} of_experts[] = {{"gate", "gate.weight"}, {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"}, {"down_proj", "down_proj"}};
enum { OF_EXPERTS = sizeof of_experts / sizeof *of_experts };

/* The row of `name`, or OF_EXPERTS. */
static int row_of(const char *name)
{
	const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
	int row = 0;
	while (row < OF_EXPERTS && strcmp(of_experts[row].module, last))
		row++;
	return row;
}

int adapter_is_of_experts(const struct rh_model_config *model, const char *name)
{
	return has_expert_modules(model) && row_of(name) < OF_EXPERTS;
}

static int add_parameter(struct rh_peft_config *peft, const char *name)
{
	size_t room = peft->parameters;
	for (size_t i = 0; i < peft->parameters; i++)
		if (!strcmp(peft->parameter[i], name))
			return 0;
	int rc = rh_grow(&peft->parameter, &room, peft->parameters + 1, sizeof *peft->parameter);
	if (!rc)
		rc = (peft->parameter[peft->parameters] = rh_strdup(name)) ? 0 : -ENOMEM;
	peft->parameters += !rc;
	return rc;
}

static int add_override(struct rh_peft_override **list, size_t *count, const char *pattern, double value)
{
	size_t room = *count;
	int rc = rh_grow(list, &room, *count + 1, sizeof **list);
	if (rc)
		return rc;
	(*list)[*count] = (struct rh_peft_override){rh_strdup(pattern), value};
	if (!(*list)[*count].pattern)
		return -ENOMEM;
	++*count;
	return 0;
}

int adapter_patterns(const struct rh_config *config, struct rh_peft_config *peft)
{
	const struct rh_list *lists[] = {&config->rank_pattern, &config->alpha_pattern};
	int64_t rank;
	double alpha;
	int rc = 0;
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; !rc && i < lists[k]->count; i++) {
			char pattern[256];
			const char *equals = strrchr(lists[k]->item[i], '=');
			snprintf(pattern, sizeof pattern, "%.*s", (int)(equals - lists[k]->item[i]), lists[k]->item[i]);
			rc = k ? add_override(&peft->alpha_override, &peft->alpha_overrides, pattern, strtod(equals + 1, NULL))
			       : add_override(&peft->rank_override, &peft->rank_overrides, pattern, strtod(equals + 1, NULL));
			if (!rc) /* is it an expression? */
				rc = rh_peft_module(peft, "", &rank, &alpha);
			if (rc)
				rc = rh_fail_in(rc, k ? "alpha_pattern" : "rank_pattern");
		}
	return rc;
}

int adapter_narrow(const struct rh_config *config, struct rh_peft_config *peft)
{
	static const char *const inits[] = {NULL, "gaussian", "false"};
	const struct rh_list *excluded = &config->exclude_modules, *layers = &config->layers_to_transform;
	int is_all = config->lora_target_modules.count == 1 && !strcmp(config->lora_target_modules.item[0], "all-linear");
	peft->init = inits[config->init_lora_weights];
	peft->exclude_is_pattern = config->exclude_pattern;
	if (peft->init && peft->parameters)
		return rh_fail(-EINVAL, "init_lora_weights: adapters of experts and routers begin as PEFT's default does; leave it out");
	if (layers->count && (config->lora_targets_pattern || is_all || peft->target_is_pattern))
		return rh_fail(-EINVAL, "layers_to_transform: goes with a list of lora_target_modules alone, as in PEFT; write the names");
	peft->exclude = rh_alloc(excluded->count + 1, sizeof *peft->exclude);
	peft->layer = rh_alloc(layers->count + 1, sizeof *peft->layer);
	if (!peft->exclude || !peft->layer)
		return -ENOMEM;
	for (; peft->excludes < excluded->count; peft->excludes++)
		if (!(peft->exclude[peft->excludes] = rh_strdup(excluded->item[peft->excludes])))
			return -ENOMEM;
	for (; peft->layers < layers->count; peft->layers++)
		peft->layer[peft->layers] = strtoll(layers->item[peft->layers], NULL, 10);
	int rc = peft->excludes ? rh_peft_matches(peft, "") : 0; /* is it an expression? */
	return rc < 0 ? rh_fail_in(rc, "exclude_modules") : 0;
}

/* A string is a regular expression on whole names; PEFT resolves it to the last words of those that it matches. */
static int resolve_pattern(const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_family_names *names = model->family->names;
	const char *found[LINEARS + OF_EXPERTS];
	size_t count = 0;
	for (int w = 0; w < LINEARS + OF_EXPERTS; w++) {
		const char *last = w < LINEARS ? linear_name(names, w) : of_experts[w - LINEARS].module;
		int is_expert = w > LINEARS;                            /* the first of the table is the router */
		int is_of_mlp = w >= RH_PROJ_GATE && w <= RH_PROJ_DOWN; /* of the shared expert, whose names mean the others too */
		if (!last || (is_of_mlp && !model->family->moe.is_shared))
			continue;
		for (int64_t l = 0; l < model->num_hidden_layers; l++) {
			struct rh_text name = {0};
			int rc = rh_text_printf(&name, "%s%lld.%s%s%s", names->layers, (long long)l,
			                        w < LINEARS ? ""
			                        : is_expert ? names->experts
			                                    : names->router,
			                        is_expert ? "." : "", w < LINEARS || is_expert ? last : "");
			if (!rc)
				rc = rh_peft_matches(peft, name.bytes);
			rh_text_free(&name);
			if (rc < 0)
				return rc;
			if (rc) {
				found[count++] = w < LINEARS ? strrchr(last, '.') + 1 : last;
				break;
			}
		}
	}
	if (!count)
		return 0; /* that nothing matches is said elsewhere */
	rh_free(peft->target[0]);
	rh_free(peft->target);
	peft->targets = 0;
	peft->target = NULL;
	peft->target_is_pattern = 0;
	return copy_names(found, count, peft);
}

/* Experts by the names of their modules, as PEFT has it: gate and up are one matrix, whose rank and alpha are twice those asked for. */
static int convert_experts(const struct rh_model_config *model, struct rh_peft_config *peft)
{
	int rc = peft->target_is_pattern ? resolve_pattern(model, peft) : 0, seen[OF_EXPERTS] = {0};
	size_t kept = 0;
	if (rc || peft->target_is_pattern)
		return rc;
	for (size_t i = 0; i < peft->targets; i++) {
		int row = row_of(peft->target[i]);
		if (row == OF_EXPERTS) {
			peft->target[kept++] = peft->target[i];
			continue;
		}
		seen[row] = 1;
		rh_free(peft->target[i]);
		if (!rc)
			rc = add_parameter(peft, of_experts[row].parameter);
	}
	peft->targets = kept;
	if (!rc && seen[1] != seen[2])
		rc = rh_fail(-EINVAL, "lora_target_modules: %s needs %s beside it: an expert's two are one matrix",
		             of_experts[1 + seen[2]].module, of_experts[2 - seen[2]].module);
	if (!rc && seen[1])
		rc = add_override(&peft->rank_override, &peft->rank_overrides, ".*\\.gate_up_proj", (double)(2 * peft->r));
	if (!rc && seen[1])
		rc = add_override(&peft->alpha_override, &peft->alpha_overrides, ".*\\.gate_up_proj", 2 * peft->lora_alpha);
	return rc;
}

int adapter_check_parameters(const struct rh_config *config, const struct rh_model_config *model)
{
	const struct rh_list *given = &config->lora_target_parameters;
	const struct rh_family_names *names = model->family->names;
	for (size_t i = 0; i < given->count; i++) {
		struct rh_text all = {0};
		struct rh_peft_config one = {.parameter = &given->item[i], .parameters = 1};
		int rc = 0, found = 0;
		const char *experts = names->experts ? names->experts : "mlp.experts";
		if (model->experts)
			rc = rh_text_printf(&all, "x.%s.gate_up_proj x.%s.down_proj", experts, experts);
		if (!rc && model->experts && names->router) /* else it is a linear */
			rc = rh_text_printf(&all, " x.%s.weight", names->router);
		for (char *at = all.bytes, *end; !rc && at; at = end ? end + 1 : NULL) {
			end = strchr(at, ' ');
			if (end)
				*end = 0;
			found |= rh_peft_matches_parameter(&one, at);
		}
		rh_text_free(&all);
		if (rc)
			return rc;
		if (!found)
			return rh_fail(-EINVAL,
			               "lora_target_parameters: '%.100s' is no parameter of experts or of a router of this model (%s)",
			               given->item[i],
			               model->experts ? "mlp.experts.gate_up_proj, mlp.experts.down_proj and the router's weight are"
			                              : "it has none");
	}
	return 0;
}

int adapter_check_dropout(const struct rh_config *config, struct rh_peft_config *peft)
{
	if (peft->use_dora && peft->parameters)
		return rh_fail(-EINVAL, "use_dora: adapters of experts and routers cannot have it, in PEFT neither; leave them out");
	if (peft->use_dora && config->lora_dropout_given && config->lora_dropout > 0)
		return rh_fail(-EINVAL,
		               "lora_dropout: with use_dora it would ask for a second product of the base with what is left, which is not "
		               "built; set it to 0 or leave it out");
	if (!peft->parameters && !peft->use_dora)
		return 0;
	if (config->lora_dropout_given && config->lora_dropout > 0)
		return rh_fail(-EINVAL,
		               "lora_dropout: adapters of experts and routers can have none, found %g; set it to 0 or leave it out",
		               config->lora_dropout);
	peft->lora_dropout = 0;
	return 0;
}

/* A tied head goes by the embedding's name, as PEFT has it; its own leaves the list. */
static int name_tied(const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const char *embedding = rh_last_part(rh_model_names(model)->embedding);
	int named = 0;
	size_t kept = 0;
	for (size_t i = 0; i < peft->targets; i++)
		named |= !strcmp(peft->target[i], embedding);
	for (size_t i = 0; i < peft->targets; i++) {
		if (adapter_is_tied_head(model, peft->target[i])) {
			char *own = named ? NULL : rh_strdup(embedding);
			if (!named && !own)
				return -ENOMEM;
			rh_free(peft->target[i]);
			peft->target[i] = own;
			named = 1;
		}
		if (peft->target[i])
			peft->target[kept++] = peft->target[i];
	}
	peft->targets = kept;
	return 0;
}

int adapter_targets(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	int rc = list_targets(config, model, peft);
	if (!rc && !peft->target_is_pattern)
		rc = name_tied(model, peft);
	for (size_t i = 0; !rc && i < config->lora_target_parameters.count; i++)
		rc = add_parameter(peft, config->lora_target_parameters.item[i]);
	if (!rc && has_expert_modules(model))
		rc = convert_experts(model, peft);
	return rc || !model->wrapped || peft->target_is_pattern ? rc : keep_to_text_model(model, peft);
}

int adapter_is_tied_head(const struct rh_model_config *model, const char *name)
{
	const char *head = rh_model_names(model)->head;
	return rh_model_ties(model) && head && !strcmp(rh_last_part(head), name);
}

/* A table that is embedding and head has one adapter for both (ensure_weight_tying), of one rank and scale. */
int adapter_tie(const struct rh_config *config, const struct rh_model_config *model, struct rh_peft_config *peft)
{
	const struct rh_family_names *names = rh_model_names(model);
	int64_t r[2];
	double alpha[2];
	if (!rh_model_ties(model) || !names->head || peft->all_linear)
		return 0;
	int of_embedding = rh_peft_matches(peft, names->embedding), of_head = rh_peft_matches(peft, names->head);
	if (of_embedding < 0 || of_head < 0)
		return of_embedding < 0 ? of_embedding : of_head;
	if (!of_embedding && !of_head)
		return 0;
	if (config->lora_targets_pattern && !config->adapter_name_or_path)
		return rh_fail(-EINVAL,
		               "lora_target_modules: the expression means %s, and this model's embedding is its head too; write a list of "
		               "names",
		               of_embedding ? names->embedding : names->head);
	if (!of_embedding)
		return rh_fail(-EINVAL,
		               "lora_target_modules: %s is this model's embedding too, which exclude_modules or the adapter's own list "
		               "leaves out; name both or neither",
		               names->head);
	int rc = rh_peft_module(peft, names->embedding, &r[0], &alpha[0]);
	if (!rc)
		rc = rh_peft_module(peft, names->head, &r[1], &alpha[1]);
	if (!rc && (r[0] != r[1] || alpha[0] != alpha[1]))
		rc = rh_fail(-EINVAL, "rank_pattern and alpha_pattern: %s and %s are one table in this model, and have one rank and alpha",
		             names->embedding, names->head);
	peft->ties = 1;
	return rc;
}

static int has_target(const struct rh_peft_config *peft, const char *name)
{
	for (size_t i = 0; i < peft->targets; i++)
		if (!strcmp(peft->target[i], name))
			return 1;
	return 0;
}

int adapter_same_targets(const struct rh_config *config, const struct rh_model_config *model, const struct rh_peft_config *peft)
{
	const struct rh_list *given = &config->lora_target_modules;
	struct rh_peft_config own = {.r = peft->r, .lora_alpha = peft->lora_alpha};
	if (given->count == 1 && !strcmp(given->item[0], "all-linear") && peft->all_linear)
		return 1;
	int rc = adapter_targets(config, model, &own), same = !rc && own.target_is_pattern == peft->target_is_pattern;
	for (size_t i = 0; same && i < own.parameters; i++)
		same = rh_peft_matches_parameter(peft, own.parameter[i]);
	for (size_t i = 0; same && i < peft->parameters; i++)
		same = rh_peft_matches_parameter(&own, peft->parameter[i]);
	for (size_t i = 0; same && i < own.targets; i++)
		same = has_target(peft, own.target[i]);
	for (size_t i = 0; same && i < peft->targets; i++)
		same = has_target(&own, peft->target[i]);
	rh_peft_config_free(&own);
	return rc < 0 ? rc : same;
}
