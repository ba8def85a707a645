/* The keys of several boxes: which one this is, and what does not go together with it. */
#include "config/config_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <stdlib.h>
#include <string.h>

struct asking {
	struct rh_config *config;
	const struct config_entry *const *given;
};

const char *rh_mode_name(enum rh_mode mode)
{
	static const char *const name[] = {RH_MODE_NAMES};
	return name[mode];
}

static const struct config_entry *given(const struct asking *at, const char *name)
{
	const struct config_entry *entry = at->given[config_key_find(name)];
	return entry && entry->kind != VALUE_NULL ? entry : NULL;
}

/* Does the text mean a key's default? Printed, 1 is 1.0 and 256MiB a number of bytes. */
static int is_default(const struct config_key *key, const char *text)
{
	double real[2];
	int64_t bytes[2];
	if (!key->fallback)
		return 0;
	if (key->type == KEY_REAL && !config_parse_real(text, &real[0]) && !config_parse_real(key->fallback, &real[1]))
		return real[0] == real[1];
	if (key->type == KEY_SIZE && !config_parse_size(text, &bytes[0]) && !config_parse_size(key->fallback, &bytes[1]))
		return bytes[0] == bytes[1];
	return !strcmp(text, key->fallback);
}

/* The entry, unless it says what holds without it: an empty list, or the key's default, as a printed configuration has it. */
static const struct config_entry *chosen(const struct asking *at, const char *name)
{
	const struct config_entry *entry = given(at, name);
	if (!entry || (entry->kind == VALUE_LIST && !entry->items.count))
		return NULL;
	return entry->kind == VALUE_SCALAR && is_default(&config_keys[entry->key], entry->text) ? NULL : entry;
}

static int check_cuts(const struct asking *at)
{
	const struct rh_list *cuts = &at->config->box_cuts;
	int64_t before = 0, cut = 0;
	if (cuts->count && (int64_t)cuts->count != at->config->boxes - 1)
		return config_entry_fail(given(at, "box_cuts"), "%zu layers for %lld boxes; name the first layer of each box but the first",
		                         cuts->count, (long long)at->config->boxes);
	for (size_t i = 0; i < cuts->count; i++, before = cut)
		if (config_parse_integer(cuts->item[i], &cut) || cut <= before)
			return config_entry_fail(given(at, "box_cuts"), "'%s' is not a layer's number above the one before it",
			                         config_show(cuts->item[i]).text);
	return 0;
}

/* PACI's keys: of several boxes, or of one box's devices, whose number is not known here. */
static int is_paci(const struct rh_config *config)
{
	return config->mode == RH_MODE_PACI || (config->mode == RH_MODE_LOCAL && config->schedule && !strcmp(config->schedule, "paci"));
}

static int check_is_paci(const struct asking *at, const char *key)
{
	const struct rh_config *config = at->config;
	if (is_paci(config) || !chosen(at, key))
		return 0;
	if (config->mode == RH_MODE_LOCAL)
		return config_entry_fail(chosen(at, key),
		                         "has no effect in mode local without schedule: paci; write one of mode: paci (several "
		                         "boxes) and schedule: paci (several devices), or remove it");
	return config_entry_fail(chosen(at, key), "has no effect in mode %s; write mode: paci, or remove it", rh_mode_name(config->mode));
}

static int check_limits(const struct asking *at)
{
	const struct rh_list *limits = &at->config->admission_limits;
	int64_t before = INT64_MAX, limit = 0;
	int rc = check_is_paci(at, "admission_limits"), is_local = at->config->mode == RH_MODE_LOCAL;
	if (rc)
		return rc;
	if (limits->count && !is_local && (int64_t)limits->count != at->config->boxes)
		return config_entry_fail(given(at, "admission_limits"), "%zu limits for %lld boxes; each has one", limits->count,
		                         (long long)at->config->boxes);
	for (size_t i = 0; i < limits->count; i++, before = limit)
		if (config_parse_integer(limits->item[i], &limit) || limit > before)
			return config_entry_fail(given(at, "admission_limits"), "'%s' is above the limit of the %s before",
			                         config_show(limits->item[i]).text, is_local ? "device" : "box");
	return 0;
}

/* The largest admission limit is the first box's; a step has a units of micro-batches: ceil((limit - 1) / a) is the bound. */
static int choose_accumulation(const struct asking *at)
{
	struct rh_config *config = at->config;
	int is_local = config->mode == RH_MODE_LOCAL;
	int64_t limit = config->boxes, unit = config->round_micro_batches && !is_local ? config->round_micro_batches : 1;
	int rc = check_is_paci(at, "max_version_drift");
	int is_known = config->mode == RH_MODE_PACI || config->admission_limits.count; /* else the plan asks for so many steps */
	if (rc || !config->max_version_drift || !is_known || given(at, "gradient_accumulation_steps"))
		return rc;
	if (config->admission_limits.count && config_parse_integer(config->admission_limits.item[0], &limit))
		return -EINVAL; /* check_limits has read it */
	config->gradient_accumulation_steps = rh_max((limit - 1 + config->max_version_drift - 1) / config->max_version_drift, 1) * unit;
	return 0;
}

double rh_config_link(const struct rh_config *config, const struct rh_list *list, int link, int way)
{
	size_t links = (size_t)config->boxes - 1, at = list->count == 1       ? 0
	                                               : list->count == links ? (size_t)link
	                                                                      : 2 * (size_t)link + (size_t)way;
	return list->count ? strtod(list->item[at], NULL) : 0;
}

static int check_links(const struct asking *at, const char *key, const struct rh_list *list)
{
	size_t links = (size_t)at->config->boxes - 1;
	if (list->count > 1 && list->count != links && list->count != 2 * links)
		return config_entry_fail(given(at, key), "%zu numbers for %zu link%s; give one for all, one for each, or two for each",
		                         list->count, links, links == 1 ? "" : "s");
	return 0;
}

static int check_hardware(const struct asking *at)
{
	const struct rh_list *list = &at->config->box_hardware;
	if (list->count && (int64_t)list->count != at->config->boxes)
		return config_entry_fail(given(at, "box_hardware"), "%zu profiles for %lld boxes; name one for each", list->count,
		                         (long long)at->config->boxes);
	return 0;
}

static int check_neighbours(const struct asking *at)
{
	const struct rh_config *config = at->config;
	const struct {
		const char *key, *text;
		int is_there, box;
	} sides[] = {{"link_below", config->link_below, config->box > 1, (int)config->box - 1},
	             {"link_above", config->link_above, config->box < config->boxes, (int)config->box + 1}};
	const struct rh_transport_traits transport = rh_transport_traits(config->link_transport);
	static const char *const keys[] = {"link_below", "link_above", "link_peer_below", "link_peer_above"};
	for (int i = 0; i < 4; i++)
		if (given(at, keys[i]) && !(i < 2 ? transport.takes_addresses : transport.takes_hashes))
			return config_entry_fail(given(at, keys[i]), "has no effect with link_transport: %s; remove it", transport.name);
	for (int i = 0; i < 2 && transport.takes_addresses; i++) {
		if (sides[i].is_there && !sides[i].text)
			return rh_fail(-EINVAL,
			               "%s: box %lld of %lld is linked with box %d; write HOST:PORT, or listen:PORT to wait for it",
			               sides[i].key, (long long)config->box, (long long)config->boxes, sides[i].box);
		if (!sides[i].is_there && sides[i].text)
			return config_entry_fail(given(at, sides[i].key), "box %lld of %lld has no neighbour there; remove it",
			                         (long long)config->box, (long long)config->boxes);
	}
	return 0;
}

static const char *const of_fluidpipe[] = {"fluidpipe_recipe", "fluidpipe_ahead",     "fluidpipe_alpha1",
                                           "fluidpipe_alpha2", "fluidpipe_weighting", "fluidpipe_temperature",
                                           "fluidpipe_kl",     "fluidpipe_top_k",     "fluidpipe_logits"};
enum { OF_FLUIDPIPE = sizeof of_fluidpipe / sizeof *of_fluidpipe, FIRST_OF_LOSS = 4 };

/* Alphas by the recipe where they are not given. */
static int choose_alphas(const struct asking *at)
{
	struct rh_config *config = at->config;
	static const double of_recipe[] = {1, 0.5, 0.9};
	const char *const name[] = {"fluidpipe_alpha1", "fluidpipe_alpha2"};
	double *const alpha[] = {&config->fluidpipe_alpha1, &config->fluidpipe_alpha2}, own = of_recipe[config->fluidpipe_recipe / 2];
	for (int i = 0; i < 2; i++) {
		if (!given(at, name[i]))
			*alpha[i] = own;
		if (config->fluidpipe_weighting == RH_WEIGHTING_SUM && *alpha[i] < 1 && *alpha[i] != own)
			return config_entry_fail(given(at, name[i]),
			                         "has no effect with fluidpipe_weighting: sum; write 1, with which that "
			                         "box does not distil, or remove it");
	}
	for (int i = FIRST_OF_LOSS; i < OF_FLUIDPIPE && *alpha[0] == 1 && *alpha[1] == 1; i++)
		if (chosen(at, of_fluidpipe[i]))
			return config_entry_fail(chosen(at, of_fluidpipe[i]),
			                         "has no effect where no box distils; choose another fluidpipe_recipe, or remove it");
	return 0;
}

static int check_fluidpipe(const struct asking *at)
{
	const struct rh_config *config = at->config;
	enum { MOST_MICRO_BATCHES = 38 }; /* of a step, all of which box 2 keeps until box 1's logits of it are there */
	if (config->mode != RH_MODE_FLUIDPIPE) {
		for (int i = 0; i < OF_FLUIDPIPE; i++)
			if (chosen(at, of_fluidpipe[i]))
				return config_entry_fail(chosen(at, of_fluidpipe[i]),
				                         "has no effect in mode %s; write mode: fluidpipe, or remove it",
				                         rh_mode_name(config->mode));
		return 0;
	}
	if (config->boxes != 2)
		return rh_fail(-EINVAL, "boxes: mode fluidpipe has 2 boxes, not %lld", (long long)config->boxes);
	if (config->schedule && strcmp(config->schedule, "roundpipe"))
		return config_entry_fail(given(at, "schedule"), "each box of mode fluidpipe runs roundpipe: remove it");
	if (config->early_stopping_patience)
		return config_entry_fail(given(at, "early_stopping_patience"),
		                         "boxes of mode fluidpipe evaluate models of their own, and would not stop together: remove it");
	if (config->link_dtype != RH_LINK_DTYPE_SAME)
		return config_entry_fail(given(at, "link_dtype"), "mode fluidpipe sends activations as they are: remove it");
	int rc = choose_alphas(at);
	if (!rc && config->fluidpipe_freeze && rh_config_distils(config, 0))
		return config_entry_fail(given(at, "fluidpipe_freeze"),
		                         "box 1 learns nothing, so box 2's logits would travel for nothing: remove it, or write "
		                         "fluidpipe_alpha1: 1");
	if (!rc && rh_config_distils(config, 1) && config->gradient_accumulation_steps > MOST_MICRO_BATCHES)
		return config_entry_fail(given(at, "gradient_accumulation_steps"),
		                         "box 2 of mode fluidpipe distils steps of at most %d micro-batches: lower it, or write "
		                         "fluidpipe_alpha2: 1",
		                         (int)MOST_MICRO_BATCHES);
	return rc;
}

static const char *const of_idle[] = {"fluidpipe_freeze",
                                      "fluidpipe_idle_sampler",
                                      "fluidpipe_idle_steps",
                                      "fluidpipe_idle_task_scale",
                                      "fluidpipe_idle_dropout",
                                      "fluidpipe_idle_store",
                                      "fluidpipe_idle_replay",
                                      "fluidpipe_idle_distillation_scale",
                                      "fluidpipe_idle_spill",
                                      "fluidpipe_idle_task_weight",
                                      "fluidpipe_idle_distillation_weight",
                                      "fluidpipe_idle_easy_share",
                                      "fluidpipe_idle_hard_share"};
enum { OF_IDLE = sizeof of_idle / sizeof *of_idle, FIRST_OF_SAMPLER = 2 };

/* Refuses keys of opportunistic steps that need distillation, where there is none. */
static int check_idle_distillation(const struct asking *at)
{
	const struct rh_config *config = at->config;
	int distils = rh_config_distils(config, 0) || rh_config_distils(config, 1);
	if (config->fluidpipe_idle_sampler == RH_OPPORTUNISTIC_DISTILLATION_LOSS && !distils)
		return config_entry_fail(given(at, "fluidpipe_idle_sampler"),
		                         "distillation-loss is 0 where no box distils; choose another fluidpipe_recipe, or task-loss");
	if (config->fluidpipe_top_k && config->fluidpipe_idle_sampler > RH_OPPORTUNISTIC_RANDOM)
		return config_entry_fail(given(at, "fluidpipe_idle_sampler"),
		                         "goes by a sample's two losses, which fluidpipe_top_k does not tell apart; choose random");
	if (chosen(at, "fluidpipe_idle_distillation_scale") && !distils)
		return config_entry_fail(given(at, "fluidpipe_idle_distillation_scale"),
		                         "has no effect where no box distils; choose another fluidpipe_recipe, or remove it");
	if (config->fluidpipe_idle_replay && config->box == 1 && !rh_config_distils(config, 0))
		return config_entry_fail(given(at, "fluidpipe_idle_replay"),
		                         "box 1 does not distil, so it waits for nothing and makes no such steps: give it to box 2");
	return 0;
}

/* What a sample's score and the pools are made of. */
static int check_sampler(const struct asking *at)
{
	const struct rh_config *config = at->config;
	enum rh_opportunistic_sampler sampler = config->fluidpipe_idle_sampler;
	static const char *const key[] = {"fluidpipe_idle_task_weight", "fluidpipe_idle_distillation_weight", "fluidpipe_idle_easy_share",
	                                  "fluidpipe_idle_hard_share"};
	int by_pools = sampler == RH_OPPORTUNISTIC_EH_DIFFICULTY, by_score = by_pools || sampler == RH_OPPORTUNISTIC_DIFFICULTY;
	for (int i = 0; i < 4; i++)
		if (!(i < 2 ? by_score : by_pools) && chosen(at, key[i]))
			return config_entry_fail(chosen(at, key[i]),
			                         "has no effect with this fluidpipe_idle_sampler; choose %s, or remove it",
			                         i < 2 ? "difficulty or eh-difficulty" : "eh-difficulty");
	if (config->fluidpipe_idle_task_weight == 0 && config->fluidpipe_idle_distillation_weight == 0)
		return config_entry_fail(given(at, key[0]), "both weights of a score are 0; make one of them another");
	if (config->fluidpipe_idle_easy_share + config->fluidpipe_idle_hard_share > 1)
		return config_entry_fail(chosen(at, key[2]) ? chosen(at, key[2]) : given(at, key[3]),
		                         "easy and hard samples are more than all: lower fluidpipe_idle_easy_share or _hard_share");
	return 0;
}

/* Keys of mode fluidpipe, most of them of the sampler of its opportunistic steps. */
static int check_idle(const struct asking *at)
{
	const struct rh_config *config = at->config;
	for (int i = 0; i < OF_IDLE && config->mode != RH_MODE_FLUIDPIPE; i++)
		if (chosen(at, of_idle[i]))
			return config_entry_fail(chosen(at, of_idle[i]), "has no effect in mode %s; write mode: fluidpipe, or remove it",
			                         rh_mode_name(config->mode));
	for (int i = FIRST_OF_SAMPLER; i < OF_IDLE && !config->fluidpipe_idle_sampler; i++)
		if (chosen(at, of_idle[i]))
			return config_entry_fail(chosen(at, of_idle[i]),
			                         "has no effect without fluidpipe_idle_sampler: choose one, or remove it");
	if (config->fluidpipe_idle_sampler && config->packing)
		return config_entry_fail(given(at, "fluidpipe_idle_sampler"),
		                         "draws rows, several of which packing: true puts into one: write packing: false, or remove it");
	if (config->fluidpipe_idle_spill && config->box == 1)
		return config_entry_fail(given(at, "fluidpipe_idle_spill"), "box 2 keeps samples, and this is box 1: remove it");
	int rc = config->mode == RH_MODE_FLUIDPIPE ? check_sampler(at) : 0;
	return rc ? rc : check_idle_distillation(at);
}

/* Refuses what a pipeline of boxes cannot do yet. */
static int check_rest(const struct asking *at)
{
	const struct rh_config *config = at->config;
	if (config->save_only_model)
		return config_entry_fail(given(at, "save_only_model"),
		                         "boxes that lose one another go on from a checkpoint that all have, so each needs its state: "
		                         "remove it");
	if (config->optimizer_staleness)
		return config_entry_fail(given(at, "optimizer_staleness"), "mode %s takes no stale weights of one box: leave it 0",
		                         rh_mode_name(config->mode));
	if (config->mode == RH_MODE_FLUIDPIPE && config->router_aux_loss_coef > 0)
		return config_entry_fail(given(at, "router_aux_loss_coef"),
		                         "boxes of mode fluidpipe do not tell each other the loads of their experts: leave it 0");
	if (config->spill & (RH_SPILL_ACTIVATIONS | RH_SPILL_AUTO))
		return config_entry_fail(given(at, "spill"),
		                         "several boxes keep activations in memory: name the others, without activations");
	if (config->forward_cut_count >= 0 || config->backward_cut_count >= 0)
		return config_entry_fail(given(at, config->forward_cut_count >= 0 ? "forward_cuts" : "backward_cuts"),
		                         "each of several boxes cuts its own layers; box_cuts says which these are");
	return 0;
}

int config_resolve_boxes(struct config_draft *draft, const struct config_entry *const *entries, int runs)
{
	struct asking at = {&draft->config, entries};
	struct rh_config *config = at.config;
	static const char *const idle[] = {"boxes",           "box",      "link_below",   "link_above",     "link_peer_below",
	                                   "link_peer_above", "box_cuts", "box_hardware", "link_transport", "link_dtype"};
	static const char tied[] = "tie_word_embeddings";
	for (size_t i = 0; config->mode == RH_MODE_LOCAL && i < sizeof idle / sizeof *idle; i++)
		if (chosen(&at, idle[i]))
			return config_entry_fail(chosen(&at, idle[i]),
			                         "has no effect in mode local; write mode: sync-pp, paci or fluidpipe, or remove it");
	for (int i = 0; config->mode == RH_MODE_LOCAL && i < OF_FLUIDPIPE; i++)
		if (chosen(&at, of_fluidpipe[i]))
			return config_entry_fail(chosen(&at, of_fluidpipe[i]),
			                         "has no effect in mode local; write mode: fluidpipe, or remove it");
	if (config->mode != RH_MODE_SYNC_PP && chosen(&at, tied))
		return config_entry_fail(chosen(&at, tied), "has no effect in mode %s; write mode: sync-pp, or remove it",
		                         rh_mode_name(config->mode));
	if (config->use_lora && chosen(&at, tied))
		return config_entry_fail(chosen(&at, tied), "has no effect with an adapter, which leaves the table as it is: remove it");
	int rc = 0;
	if (config->mode == RH_MODE_LOCAL) {
		rc = check_limits(&at);
		if (!rc)
			rc = choose_accumulation(&at);
		return rc ? rc : check_idle(&at);
	}
	rc = config_ask_ranks(config);
	if (rc)
		return rc;
	if (config->mode == RH_MODE_FLUIDPIPE && !config->boxes)
		config->boxes = 2;
	if (!config->boxes || !config->box)
		return rh_fail(-EINVAL, "mode %s needs boxes (how many there are) and box (which one this is, from 1)",
		               rh_mode_name(config->mode));
	if (config->box > config->boxes) /* either may be a launcher's */
		return rh_fail(-EINVAL, "box: %lld of %lld boxes: count from 1", (long long)config->box, (long long)config->boxes);
	if (!given(&at, "schedule") && config->mode != RH_MODE_FLUIDPIPE) { /* within a box it would be RoundPipe */
		rh_free(config->schedule);
		config->schedule = rh_strdup(config->mode == RH_MODE_PACI ? "paci" : "1f1b");
		if (!config->schedule)
			return -ENOMEM;
	}
	rc = check_cuts(&at);
	if (!rc)
		rc = check_limits(&at);
	if (!rc)
		rc = choose_accumulation(&at);
	if (!rc)
		rc = check_hardware(&at);
	if (!rc)
		rc = check_links(&at, "link_mbit_per_second", &config->link_mbit_per_second);
	if (!rc)
		rc = check_links(&at, "link_latency_ms", &config->link_latency_ms);
	if (!rc)
		rc = check_fluidpipe(&at);
	if (!rc)
		rc = check_idle(&at);
	if (!rc && runs)
		rc = config_ask_addresses(config);
	if (!rc && runs)
		rc = check_neighbours(&at);
	return rc ? rc : check_rest(&at);
}
