#include "modes/boxes/box_cuts.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/text.h"
#include "forecast/forecast_input.h"
#include "offload/staging.h"
#include "offload/transfer.h"
#include "partition/costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages of the choice, whose tags no step has. */
enum { TAG_MEASURES = UINT16_MAX, TAG_CUTS };

/* Micro-batches that a box passes on together. */
static int64_t unit_of(const struct rh_config *config, int devices)
{
	return config->round_micro_batches ? config->round_micro_batches : devices;
}

/* Micro-batches that box `number` and the box below it have in flight: the admission limits of a pipeline without a flush, what the
 * schedule keeps at once of any other. */
static int find_in_flight(const struct rh_config *config, int number, int devices, int64_t count, int64_t *below, int64_t *own)
{
	const struct rh_list *limits = &config->admission_limits;
	const struct rh_boxes place = {.boxes = (int)config->boxes, .box = number, .unit = unit_of(config, devices)};
	const struct rh_dispatch dispatch = {.schedule = config->schedule ? rh_schedule_find(config->schedule) : NULL, .boxes = &place};
	if (config->mode == RH_MODE_SYNC_PP && dispatch.schedule)
		return rh_dispatch_boxes_in_flight(&dispatch, count, below, own);
	*own = place.unit * (limits->count ? atoll(limits->item[number]) : config->boxes - number);
	*below = place.unit * (!number ? 0 : limits->count ? atoll(limits->item[number - 1]) : config->boxes - number + 1);
	return 0;
}

/* ---- one box ---- */

/* Bytes of a layer that the store keeps in host memory. */
static int64_t stored_bytes(const struct rh_config *config, const struct rh_model *model, int l, int crosses_rounds)
{
	struct rh_store_options options = {.dtype = config->dtype,
	                                   .crosses_rounds = crosses_rounds,
	                                   .layout = config->state_layout,
	                                   .optim = config->optim,
	                                   .momentum = config->momentum != 0,
	                                   .addresses_only = 1};
	int64_t bytes = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
		int b = model->layer[l].block[which];
		if (b < 0)
			continue;
		struct rh_block block = model->block[b];
		if (block.uses == 2 && block.trainable) /* this layer's copy of a table that the layer of its other use has, too */
			block.shared = l ? RH_SHARED_BY_HEAD : RH_SHARED_BY_EMBEDDING;
		bytes += rh_min(rh_store_bytes(&block, 1, &options), RH_BYTES_MOST);
		options.spill = config->spill & RH_SPILL_AUTO ? RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS
		                                              : config->spill & ~RH_SPILL_ACTIVATIONS;
		struct rh_store_nvme nvme = rh_store_nvme(&block, 1, &options);
		bytes -= nvme.frozen + nvme.masters + nvme.state;
		options.spill = 0;
	}
	return bytes;
}

/* The least that a CPU device can take of host memory: its largest layer, and another's weights beside it. */
static int64_t device_bytes(const struct rh_costs *costs)
{
	int64_t most = 0, upload = 0;
	for (int l = 0; l < costs->layers; l++) {
		most = rh_max(most, rh_costs_stage_bytes(costs, l < costs->first_trained ? RH_PASS_FORWARD : RH_PASS_BACKWARD, l, l + 1));
		upload = rh_max(upload, rh_costs_upload_bytes(costs, l, l + 1));
	}
	return most + upload;
}

/* Host memory of a box's messages, whatever its layers are: of each micro-batch in flight an activation and a gradient at the boundary to a
 * neighbour, one more of the two while it is sent or received; and what box 2 of mode fluidpipe receives ahead, and box 1 sends. */
static int count_messages(const struct rh_config *config, const struct rh_model *model, int number, int devices, int64_t *bytes)
{
	enum { EACH = 3 };
	int64_t below, own, rows = config->per_device_train_batch_size * config->max_length,
	                    ahead = config->mode == RH_MODE_FLUIDPIPE ? config->fluidpipe_ahead : 0;
	int rc = find_in_flight(config, number, devices, config->gradient_accumulation_steps, &below, &own);
	int64_t in_flight = (number ? below : 0) + (number + 1 < config->boxes ? own : 0);
	*bytes = rc ? 0 : (EACH * in_flight + ahead) * rh_boundary_most_bytes(model, rows);
	return rc;
}

/* Only the last box's backward follows its forward at once. */
static double seconds_of(const struct rh_costs *costs, int l, int is_last)
{
	const struct rh_layer_cost *layer = &costs->layer[l];
	if (l < costs->first_trained)
		return layer->forward_s;
	return layer->forward_s + layer->backward_s + (is_last ? 0 : layer->recompute_s);
}

static int measure(const struct rh_session *session, const struct rh_run_machine *machine, int number, struct rh_box_layer *layer,
                   int64_t *cap_bytes)
{
	const struct rh_config *config = session->config;
	const struct rh_model *model = session->model;
	const struct rh_rates rates = {.device = &machine->hardware->device,
	                               .share = machine->hardware->device.on_host_cores ? 1.0 / machine->devices : 1};
	struct rh_forecast_input input;
	struct rh_costs costs;
	int64_t message_bytes;
	int rc = count_messages(config, model, number, machine->devices, &message_bytes);
	if (!rc)
		rc = rh_forecast_input_synthetic(config, 1, &input);
	if (rc)
		return rc;
	struct rh_micro_shape shape = input.work.train;
	shape.pixels = rh_model_patch(model->config);
	shape.typed = model->config->types ? shape.tokens : 0;
	rc = rh_costs_measure(model, &shape, &rates, 0, &costs);
	int crosses_rounds = rh_boxes_cross_rounds(config->schedule ? rh_schedule_find(config->schedule) : NULL,
	                                           input.work.train_micro_batches, unit_of(config, machine->devices));
	rh_forecast_input_free(&input);
	if (rc)
		return rc;
	for (int l = 0; l < model->layers; l++) {
		/* a micro-batch in flight keeps the input of each stage, and as many layers are a stage as fill a device; box 1 counts with
		 * one device in each box */
		int64_t room = machine->device_room ? machine->device_room : machine->ram_bytes,
		        here = rh_costs_stage_bytes(&costs, RH_PASS_BACKWARD, l, l + 1);
		double share = fmin((double)here / (double)rh_max(room, 1), 1),
		       in_flight = (double)unit_of(config, machine->devices) / (double)unit_of(config, 1);
		layer[l] = (struct rh_box_layer){.seconds = seconds_of(&costs, l, number + 1 == config->boxes) / machine->devices,
		                                 .static_bytes = stored_bytes(config, model, l, crosses_rounds),
		                                 .activation_bytes = (int64_t)(in_flight * share * (double)costs.layer[l].boundary_bytes)};
	}
	*cap_bytes = rh_min(machine->ram_bytes, RH_BYTES_MOST) - rh_run_program_bytes(config, machine, model) - RH_RUN_CHECKPOINT_BYTES -
	             message_bytes - (machine->device_room ? rh_staging_bytes(RH_TRANSFER_MOST) : machine->devices * device_bytes(&costs));
	rh_costs_free(&costs);
	return 0;
}

int rh_box_measure(struct rh_session *session, int number, struct rh_box_layer *layer, int64_t *cap_bytes)
{
	struct rh_run_machine machine;
	struct rh_hardware local = {0};
	int rc = rh_session_run_machine(session, &machine);
	if (!rc)
		rc = rh_session_rates(session, &local, &machine);
	if (!rc)
		rc = measure(session, &machine, number, layer, cap_bytes);
	rh_hardware_free(&local);
	return rc;
}

/* ---- all boxes ---- */

/* The latency of link `k`, up (way 0) or down. */
static double latency_s(const struct rh_config *config, const struct rh_box_told *told, int k, int way)
{
	const struct rh_list *given = &config->link_latency_ms;
	return given->count ? rh_config_link(config, given, k, way) / 1e3 : told[k].line_above.latency_s;
}

static double bytes_per_s(const struct rh_config *config, const struct rh_box_told *told, int k, int way)
{
	const struct rh_list *given = &config->link_mbit_per_second;
	return given->count ? rh_config_link(config, given, k, way) * 1e6 / 8 : told[k].line_above.bytes_per_s[way];
}

int rh_box_cuts_choose(const struct rh_config *config, const struct rh_model *model, const struct rh_box_layer *layer,
                       const struct rh_box_told *told, int *first)
{
	int boxes = (int)config->boxes, layers = model->layers;
	size_t lines = 2 * ((size_t)boxes - 1);
	struct rh_box_means *box = rh_alloc((size_t)boxes, sizeof *box);
	int64_t *boundary = rh_alloc((size_t)layers, sizeof *boundary), count = config->gradient_accumulation_steps;
	double *line = rh_alloc(2 * lines, sizeof *line);
	struct rh_box_partition found;
	int rc = box && boundary && line ? 0 : -ENOMEM;
	for (int k = 0; !rc && k < boxes; k++) {
		int64_t below;
		rc = find_in_flight(config, k, 1, count, &below, &box[k].in_flight);
	}
	if (rc)
		goto out;
	int64_t rows = config->per_device_train_batch_size * config->max_length;
	for (int l = 0; l < layers; l++)
		boundary[l] =
		        rh_wire_bytes((enum rh_wire)config->link_dtype, config->dtype, rows, rh_boundary_shape(model, l + 1, rows).cols);
	for (int k = 0; k < boxes; k++) {
		box[k].layer = layer + (size_t)k * (size_t)layers;
		box[k].cap_bytes = told[k].cap_bytes;
	}
	for (int i = 0; i < (int)lines; i++) {
		line[i] = latency_s(config, told, i / 2, i % 2);
		line[lines + (size_t)i] = bytes_per_s(config, told, i / 2, i % 2);
	}
	const struct rh_box_partition_request request = {.boxes = boxes,
	                                                 .layers = layers,
	                                                 .box = box,
	                                                 .boundary_bytes = boundary,
	                                                 .latency_s = line,
	                                                 .bytes_per_s = line + lines,
	                                                 .micro_batches = config->mode == RH_MODE_SYNC_PP ? count : 0};
	rc = rh_box_partition_make(&request, first, &found);
	if (!rc && config->mode == RH_MODE_FLUIDPIPE) /* a transformer layer at least in either box */
		first[1] = (int)rh_min(rh_max(first[1], 2), layers - 2);
out:
	rh_free(box);
	rh_free(boundary);
	rh_free(line);
	return rc;
}

/* ---- a run ---- */

/* Where there is no flush, and where activations travel in fewer bits. */
static int cuts_change_results(const struct rh_config *config)
{
	return config->mode != RH_MODE_SYNC_PP || config->link_dtype != RH_LINK_DTYPE_SAME;
}

/* Box 1 hears of all: layer (boxes, layers), told (boxes). A box hears of those above it. */
static int gather_layers(struct rh_session *session, struct rh_box_layer *layer, struct rh_box_told *told)
{
	struct rh_box *box = &session->box;
	size_t layers = (size_t)session->model->layers, own = (size_t)box->number, above = (size_t)box->boxes - own - 1;
	int rc = rh_box_measure(session, box->number, layer + own * layers, &told[own].cap_bytes);
	if (!rc && session->rates_assumed)
		rh_note("box_cuts is unset: the cuts reckon with assumed rates of this box (doctor --save local measures them)");
	if (!cuts_change_results(session->config)) /* else runs are to be equal whatever a line carries today */
		told[own].line_above = box->line_above;
	if (!rc)
		rc = rh_box_take(box->link_above, TAG_MEASURES, layer + (own + 1) * layers, (int64_t)(above * layers * sizeof *layer));
	if (!rc)
		rc = rh_box_take(box->link_above, TAG_MEASURES, told + own + 1, (int64_t)(above * sizeof *told));
	if (!rc)
		rc = rh_box_give(box, box->link_below, TAG_MEASURES, layer + own * layers, (int64_t)((above + 1) * layers * sizeof *layer));
	return rc ? rc : rh_box_give(box, box->link_below, TAG_MEASURES, told + own, (int64_t)((above + 1) * sizeof *told));
}

/* A line says which speeds box 1 uses; none where no line's speed is known. */
static void tell_lines(const struct rh_config *config, const struct rh_box_told *told)
{
	for (int k = 0; k + 1 < (int)config->boxes; k++) {
		double up = bytes_per_s(config, told, k, 0) * 8 / 1e6, down = bytes_per_s(config, told, k, 1) * 8 / 1e6,
		       there_and_back = latency_s(config, told, k, 0) + latency_s(config, told, k, 1);
		if (up > 0 && down > 0)
			rh_note("box_cuts is unset: the cuts reckon with %.3g Mbit/s up and %.3g down between boxes %d and %d, and %.3g ms "
			        "there and back%s",
			        up, down, k + 1, k + 2, there_and_back * 1e3,
			        config->link_mbit_per_second.count ? "" : ", as measured now (link_mbit_per_second sets them)");
	}
}

static int choose_together(struct rh_session *session, int *first)
{
	size_t boxes = (size_t)session->box.boxes;
	struct rh_box_layer *layer = rh_alloc(boxes * (size_t)session->model->layers, sizeof *layer);
	struct rh_box_told *told = rh_alloc(boxes, sizeof *told);
	int rc = layer && told ? gather_layers(session, layer, told) : -ENOMEM;
	if (!rc && !session->box.number) {
		tell_lines(session->config, told);
		rc = rh_box_cuts_choose(session->config, session->model, layer, told, first);
	}
	rh_free(layer);
	rh_free(told);
	return rc;
}

/* The configuration with these cuts. */
static int name_cuts(struct rh_session *session, const int *first)
{
	enum { DIGITS = 12 };
	size_t count = (size_t)session->box.boxes - 1;
	char **item = rh_alloc(count, sizeof *item + DIGITS);
	if (!item)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		item[i] = (char *)(item + count) + i * DIGITS;
		snprintf(item[i], DIGITS, "%d", first[i + 1]);
	}
	session->cut = *session->config;
	session->cut.box_cuts = (struct rh_list){.item = item, .count = count};
	session->config = &session->cut;
	return 0;
}

/* A checkpoint's cuts: those of its resolved configuration. 1: there are some. */
static int cuts_of_checkpoint(const char *checkpoint, int boxes, int layers, int *first)
{
	json_t *cuts = NULL;
	int rc = checkpoint ? rh_checkpoint_value(checkpoint, "box_cuts: ", &cuts) : 0, found = 0;
	int are_words = json_array_size(cuts) > 0;
	for (size_t i = 0; i < json_array_size(cuts); i++)
		are_words &= json_is_string(json_array_get(cuts, i));
	if (!rc && are_words && (int)json_array_size(cuts) == boxes - 1) {
		first[0] = 0;
		first[boxes] = layers;
		for (int k = 1; k < boxes; k++)
			first[k] = atoi(json_string_value(json_array_get(cuts, (size_t)k - 1)));
		found = 1;
	}
	json_decref(cuts);
	return rc ? rc : found;
}

/* Box 1's word counts: that of its checkpoint, or what follows from all boxes' speeds. */
static int agree(struct rh_session *session, const char *checkpoint, int *first)
{
	struct rh_box *box = &session->box;
	int layers = session->model->layers, boxes = box->boxes;
	int *own = rh_alloc((size_t)boxes + 1, sizeof *own);
	int kept = own ? cuts_of_checkpoint(checkpoint, boxes, layers, own) : -ENOMEM, rc = kept < 0 ? kept : 0;
	if (!rc && checkpoint && !kept)
		rc = rh_fail(-EINVAL, "box_cuts: the checkpoint does not say where its run was cut; give the cuts it had");
	if (!rc && !checkpoint) /* all go on, or all begin anew */
		rc = choose_together(session, first);
	else if (!rc && kept)
		memcpy(first, own, ((size_t)boxes + 1) * sizeof *own);
	if (!rc)
		rc = rh_box_pass_up(box, TAG_CUTS, first, (boxes + 1) * (int64_t)sizeof *first);
	if (!rc && kept && memcmp(first, own, ((size_t)boxes + 1) * sizeof *own))
		rc = rh_fail(-EINVAL, "box_cuts: the checkpoint of this box has other cuts than that of box 1: they are of different runs");
	for (int k = 0; !rc && k < boxes; k++)
		if (first[k] >= first[k + 1] || first[0] || first[boxes] != layers)
			rc = rh_fail(-EPROTO, "box_cuts: the cuts that box 1 speaks of are not of this model");
	rh_free(own);
	return rc;
}

int rh_box_take_layers(struct rh_session *session, const char *checkpoint)
{
	struct rh_box *box = &session->box;
	int *first = rh_alloc((size_t)box->boxes + 1, sizeof *first), is_given = session->config->box_cuts.count > 0;
	int rc = !first     ? -ENOMEM
	         : is_given ? rh_box_cuts(session->config, session->model->layers, first)
	                    : agree(session, checkpoint, first);
	if (!rc && !is_given)
		rc = name_cuts(session, first);
	if (!rc) {
		box->lo = first[box->number];
		box->hi = first[box->number + 1];
		rh_note("box %d of %d: layers %d to %d%s", box->number + 1, box->boxes, box->lo, box->hi - 1,
		        is_given ? "" : ", as box_cuts is unset");
		rc = rh_session_keep_layers(session);
	}
	rh_free(first);
	return rc;
}
