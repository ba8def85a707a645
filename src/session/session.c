#include "session/session.h"

#include "ckpt/prompts.h"
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "core/minmax.h"
#include "data/dataset.h"
#include "device/sim/sim.h"
#include "observe/progress.h"
#include "schedule/schedule.h"
#include "session/chunks.h"
#include "session/mode.h"
#include "session/prompting.h"
#include "session/session_model.h"
#include "weights/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static int open_files(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (config->model_name_or_path) {
		int rc = config->verify_base ? rh_verify_base(config->model_name_or_path) : 0;
		if (rc)
			return rc;
		rc = rh_source_open_for(config->model_name_or_path, config->task, config->num_labels, &session->source);
		if (rc)
			return rc;
		session->model_config = rh_source_config(session->source);
		return 0;
	}
	int rc = rh_model_config_load(config->config_name, &session->random_config);
	if (!rc)
		rc = rh_model_config_set_task(&session->random_config, config->task, config->num_labels, config->config_name);
	if (rc)
		return rc;
	session->model_config = &session->random_config;
	return 0;
}

/* The run's end-of-sequence token; else the one that the adapter was trained with, where the model has it. */
static int set_eos(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	int32_t own = rh_tokenizer_eos(session->tokenizer);
	int rc = config->eos_token              ? rh_tokenizer_set_eos(session->tokenizer, config->eos_token)
	         : config->adapter_name_or_path ? rh_source_take_eos(config->adapter_name_or_path, session->tokenizer)
	                                        : 0;
	session->eos_changed = rh_tokenizer_eos(session->tokenizer) != own;
	return rc;
}

/* Conversations with an adapter go through the template that it was trained with; a run that goes on from it keeps that. */
static int take_template(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	const char *own = rh_tokenizer_chat_template(session->tokenizer);
	char *text = NULL;
	if (!config->adapter_name_or_path || config->chat_template)
		return 0;
	int rc = rh_prompting_of_adapter(config->adapter_name_or_path, own != NULL, &text);
	if (rc || !text || (own && !strcmp(own, text))) {
		rh_free(text);
		return rc;
	}
	rh_note("conversations go through the chat template of %s%s", config->adapter_name_or_path,
	        own ? ", with which it was trained, in place of the base's" : "");
	rh_tokenizer_set_chat_template(session->tokenizer, text);
	session->chat_jinja = rh_tokenizer_chat_template(session->tokenizer);
	return 0;
}

int rh_session_load_tokenizer(struct rh_session *session)
{
	const struct rh_model_config *model = session->model_config;
	if (model->image_size) {
		session->image =
		        (struct rh_image_form){.size = model->image_size, .patch = model->patch_size, .channels = model->num_channels};
		return rh_image_form_load(session->source ? session->config->model_name_or_path : session->config->config_name,
		                          &session->image);
	}
	int rc = session->source ? rh_source_tokenizer(session->source, &session->tokenizer)
	                         : rh_tokenizer_load(session->config->config_name, &session->tokenizer);
	if (!rc)
		rc = rh_tokenizer_fit(session->tokenizer, session->model_config->vocab_size);
	if (!rc)
		rc = set_eos(session);
	return rc ? rc : take_template(session);
}

struct rh_objective rh_session_objective(const struct rh_session *session)
{
	const struct rh_model_config *model = session->model_config;
	return (struct rh_objective){.task = model->task,
	                             .labels = model->num_labels,
	                             .label_ids = json_object_get(model->source, "label2id"),
	                             .image = model->image_size ? &session->image : NULL,
	                             .is_typed = model->types > 0,
	                             .hidden_share = session->config->mlm_probability,
	                             .seed = session->config->data_seed};
}

int rh_session_check_speaks(const struct rh_session *session)
{
	if (session->model_config->task == RH_TASK_CAUSAL_LM)
		return 0;
	return rh_fail(-EINVAL, "%s does not continue texts; eval judges it", rh_model_architecture(session->model_config));
}

int rh_session_check_length(const struct rh_session *session)
{
	int64_t known = rh_model_longest(session->model_config);
	if (!session->model_config->image_size && session->config->max_length > known)
		return rh_fail(-EINVAL, "max_length: %lld is above the %lld positions that the model knows; lower it",
		               (long long)session->config->max_length, (long long)known);
	return 0;
}

/* A model whose config.json cannot be written is found before the training, not after it. */
static int check_writable(const struct rh_session *session)
{
	json_t *json = NULL;
	if (session->model_config->wrapped && !session->source && !session->machine)
		return rh_fail(-EINVAL,
		               "config_name: %s describes a model with parts beside its text model, which cannot begin at random; make its "
		               "text_config a config.json",
		               session->config->config_name);
	int rc = rh_model_config_write(session->model_config, "float32", &json);
	json_decref(json);
	return rc;
}

static int hash_adapter(const char *dir, char hash[RH_FILE_HASH])
{
	char *path = rh_path_join(dir, "adapter_model.safetensors");
	int rc = path ? rh_file_hash(path, hash) : -ENOMEM;
	rh_free(path);
	return rc;
}

/* The weights that an adapter was trained on, as its directory says, beside those of this base. */
static int compare_base(struct rh_session *session)
{
	const char *dir = session->config->adapter_name_or_path;
	char said[RH_DIGEST] = "";
	if (!session->lora || !session->source || session->machine)
		return 0;
	int rc = rh_base_digest(session->source, session->model, RH_BF16, session->base_digest);
	if (!rc && dir)
		rc = rh_prompts_base(dir, said, sizeof said);
	if (!rc && *said && strcmp(said, session->base_digest))
		rh_note("warning: adapter_name_or_path: %s was trained on other weights than those of %s", dir,
		        session->config->model_name_or_path);
	return rc;
}

/* The box's links. */
static int open_box(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	char line[256], base[RH_DIGEST] = "none", adapter[RH_FILE_HASH] = "none";
	uint64_t tokenizer;
	json_t *json = NULL;
	int rc = rh_source_tokenizer_hash(session->source ? config->model_name_or_path : config->config_name, &tokenizer);
	if (rc)
		return rc;
	if (session->source)
		rc = rh_base_digest(session->source, session->model, session->model->dtype, base);
	if (!rc && config->adapter_name_or_path)
		rc = hash_adapter(config->adapter_name_or_path, adapter);
	if (!rc)
		rc = rh_model_config_describe(session->model_config, &json);
	char *text = rc ? NULL : json_dumps(json, JSON_SORT_KEYS | JSON_COMPACT);
	json_decref(json);
	if (!text)
		return rc ? rc : -ENOMEM;
	snprintf(line, sizeof line, "config.json=%016llx\ntokenizer=%016llx\nbase weights=%s\nadapter weights=%s\n",
	         (unsigned long long)XXH3_64bits(text, strlen(text)), (unsigned long long)tokenizer, base, adapter);
	free(text);
	return rh_box_open(config, line, &session->box);
}

const struct rh_mode_ops *rh_session_mode(const struct rh_session *session)
{
	const struct rh_mode_ops *mode = rh_mode_of(session->config->mode);
	return mode->has_boxes && !rh_box_is_linked(&session->box) ? rh_mode_of(RH_MODE_LOCAL) : mode;
}

int rh_session_keep_layers(struct rh_session *session)
{
	const struct rh_mode_ops *mode = rh_session_mode(session);
	int64_t parameters;
	rh_model_parameters(session->model, &session->box.trained, &parameters);
	return mode->part.take ? mode->part.take(session) : 0;
}

static int join_boxes(struct rh_session *session)
{
	const struct rh_mode_ops *mode = rh_mode_of(session->config->mode);
	int rc = mode->part.check ? mode->part.check(session) : 0;
	if (!rc)
		rc = rh_run_check_boxes(session->config, &mode->order);
	if (rc)
		return rc;
	if (!session->machine)
		return open_box(session);
	session->box = *session->machine->box;
	return rh_session_keep_layers(session);
}

/* Notes the task in the adapter's configuration. */
static int check_task(struct rh_session *session)
{
	enum rh_task_kind task = session->model_config->task;
	struct rh_peft_config *peft = &session->adapter.peft;
	if (task != RH_TASK_CAUSAL_LM)
		peft->task_type = task == RH_TASK_SEQUENCE_CLASSIFICATION ? "SEQ_CLS" : "";
	return 0;
}

/* The load balancing loss of a mixture of experts. Only the run's own key asks for it; what config.json says is told, not followed. */
static int set_load_balancing(const struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (config->router_aux_loss_coef == 0) {
		if (!session->machine && json_is_true(json_object_get(session->model_config->source, "output_router_logits")))
			rh_note("config.json's output_router_logits asks for a load balancing loss of the routers, which this run leaves "
			        "out: "
			        "router_aux_loss_coef is 0");
		return 0;
	}
	if (!session->model->routed_layers)
		return rh_fail(-EINVAL,
		               "router_aux_loss_coef: %s has no layers with experts, whose loads this loss would balance; leave it out",
		               rh_model_architecture(session->model_config));
	if (session->model_config->family->moe.is_sigmoid)
		return rh_fail(
		        -EINVAL,
		        "router_aux_loss_coef: routers of %s are balanced by biases of their choice, and have no such loss; leave it out",
		        rh_model_architecture(session->model_config));
	session->model->router_aux_loss_coef = (float)config->router_aux_loss_coef;
	return 0;
}

/* What a file has packed stays so; of the rest the keys say what becomes packed, but for embedding and head. What products take in 8 bits
 * is stored for them. */
static enum rh_form form_of(const void *context, const struct rh_tensor *tensor)
{
	const struct rh_session *session = context;
	enum rh_form stored = session->source ? rh_source_form(session->source, tensor) : RH_FORM_PLAIN, made = session->config->quantize;
	if (!stored && tensor->may_feed && (!made || made == RH_FORM_FP8_BLOCKS))
		return RH_FORM_FP8_JOINT;
	return stored || !made || tensor->is_table || !rh_form_takes(made, tensor->cols) ? stored : made;
}

void rh_session_pack(const struct rh_session *session, struct rh_model *model)
{
	if (session->source || session->config->quantize || session->config->fp8)
		rh_model_pack(model, form_of, session);
	rh_model_scale(model);
}

/* Losses over answers are of models that continue texts; dropout is off, as in TRL. */
static int set_preference(const struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (!config->preference.answers)
		return 0;
	if (session->model_config->task != RH_TASK_CAUSAL_LM)
		return rh_fail(-EINVAL, "loss_type: %s does not continue texts, so its answers cannot be judged; leave it out",
		               rh_model_architecture(session->model_config));
	if (!session->machine && session->lora && session->model->dropout != 0)
		rh_note("lora_dropout: off, as in TRL with losses over preferences, also where it is given");
	if (!session->machine && session->lora && config->learning_rate == 1e-6)
		rh_note("learning_rate: 1e-6, as in TRL where none is given; an adapter hardly moves at it: try 5e-6 and more");
	rh_model_judge(session->model, &config->preference);
	return 0;
}

static int open_session(int trains, struct rh_session *out)
{
	const struct rh_config *config = out->config;
	out->lora = trains ? config->use_lora : config->adapter_name_or_path != NULL;
	/* before anything is read for a device that is not there */
	out->device_count = out->machine ? out->machine->devices : rh_devices_count(config->device);
	int rc = out->device_count < 0 ? out->device_count : open_files(out);
	if (!rc)
		rc = rh_session_scale_rope(out);
	if (!rc)
		rc = rh_session_keep_first_layers(out);
	if (!rc && out->lora)
		rc = rh_adapter_resolve(config, out->model_config,
		                        out->machine ? RH_ADAPTER_PLANS
		                        : trains     ? RH_ADAPTER_TRAINS
		                                     : RH_ADAPTER_INFERS,
		                        &out->adapter);
	if (!rc && rh_peft_tables_untie(out->adapter.tables))
		rc = rh_session_untie_config(out);
	if (!rc && trains)
		rc = rh_session_untie(out);
	if (!rc)
		rc = check_task(out);
	if (!rc)
		rc = rh_model_create(out->model_config, config->dtype, out->lora ? &out->adapter.lora : NULL, &out->model);
	if (!rc && out->lora && !config->adapter_name_or_path)
		rh_adapter_start(config, out->model);
	if (!rc && config->fp8 && !out->machine) /* a simulated one has the rate or falls back on another */
		rc = rh_devices_check_fp8(config->device);
	if (!rc) {
		out->model->multiply = config->fp8                                    ? RH_MULTIPLY_F8
		                       : config->accumulation == RH_ACCUMULATION_FP16 ? RH_MULTIPLY_F16_SUMS
		                                                                      : RH_MULTIPLY_BF16;
		out->model->chunk = config->accumulation_chunk;
	}
	if (!rc && trains)
		rc = set_load_balancing(out);
	if (!rc && trains)
		rc = rh_session_set_dropout(out);
	if (!rc && trains)
		rc = set_preference(out);
	if (!rc && trains)
		rc = rh_chunks_check(config, out->model);
	if (!rc && trains)
		rc = rh_saved_check(config, out->model);
	if (!rc && trains)
		rc = rh_session_check_tied(out);
	if (!rc && !trains)
		rh_model_freeze(out->model);
	else if (!rc)
		rc = out->lora ? rh_adapter_check_targets(config, out->model) : check_writable(out);
	if (!rc) {
		rh_session_pack(out, out->model);
		rc = compare_base(out);
	}
	if (!rc && out->model->dora)
		rc = rh_adapter_check_dora(out->model);
	if (!rc && trains && rh_mode_of(config->mode)->has_boxes && (!out->machine || out->machine->box))
		rc = join_boxes(out);
	if (rc)
		rh_session_close(out);
	return rc;
}

int rh_session_open(const struct rh_config *config, enum rh_session_purpose purpose, struct rh_session *out)
{
	*out = (struct rh_session){.config = config};
	return open_session(purpose == RH_SESSION_TRAINS, out);
}

int rh_session_simulate(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_session *out)
{
	*out = (struct rh_session){.config = config, .machine = machine};
	return open_session(1, out);
}

/* Before the plan, which asks it for its unit. */
static int open_space(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (!(config->spill || config->fluidpipe_idle_spill) || session->machine || session->space)
		return 0;
	if (config->nvme_dirs.count > RH_SPACE_DRIVES)
		return rh_fail(-EINVAL, "nvme_dirs: %zu directories; at most %d can be used", config->nvme_dirs.count, RH_SPACE_DRIVES);
	struct rh_space_options options = {
	        .dir = config->nvme_dirs.item, .dirs = (int)config->nvme_dirs.count, .most_written_bytes = config->max_nvme_writes};
	return rh_space_open(&options, &session->space);
}

static void tell_loading(void *context, int64_t done_bytes, int64_t bytes)
{
	rh_progress_loading(context, done_bytes, bytes, rh_clock_seconds());
}

/* What takes no second is not shown. */
static int load_base(struct rh_session *session)
{
	struct rh_progress *progress = NULL;
	int rc = rh_progress_open(STDERR_FILENO, rh_progress_style_of(STDERR_FILENO), 0, &progress);
	struct rh_loading loading = {tell_loading, progress};
	if (!rc)
		rc = rh_weights_load(session->source, session->config->seed, session->model, session->store, session->pool, &loading);
	rh_progress_close(progress);
	return rc;
}

static int load_weights(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	int rc = load_base(session);
	if (!rc && config->adapter_name_or_path)
		rc = rh_adapter_load(config->adapter_name_or_path, session->adapter.tables, session->model, session->store);
	if (!rc && session->adapter.tables)
		rc = rh_adapter_load_tables(session->adapter.tables, session->source, session->model, session->store);
	if (!rc && session->model->dora && !config->adapter_name_or_path)
		rc = rh_adapter_measure(session->model, session->store);
	if (session->source)
		rh_source_forget(session->source);
	return rc ? rc : rh_store_settle(session->store);
}

static int open_devices(struct rh_session *session)
{
	const struct rh_session_machine *machine = session->machine;
	if (!machine)
		return rh_devices_open(session->config->device, session->device_count, session->plan.stages.device_bytes,
		                       &session->devices);
	return rh_devices_simulate(machine->hardware, session->device_count, session->config->state_layout,
	                           session->plan.stages.device_bytes, machine->clock, &session->devices);
}

int rh_session_clipping_devices(const struct rh_session *session)
{
	return rh_session_updates_by_stage(session->config) && session->config->max_grad_norm > 0 ? session->plan.stages.forward_stages + 1
	                                                                                          : 0;
}

int rh_session_stage_of(const struct rh_session *session, int block)
{
	const struct rh_stage_plan *stages = &session->plan.stages;
	const struct rh_model *model = session->model;
	int stage = 0;
	for (int l = 0; l < model->layers; l++) {
		stage += stage < stages->forward_stages && l == stages->forward[stage].hi;
		if (rh_layer_has_block(&model->layer[l], block))
			return stage;
	}
	return stage;
}

static int clip_by_device(struct rh_session *session)
{
	int devices = rh_session_clipping_devices(session), blocks = session->model->blocks;
	if (!devices)
		return 0;
	int *part = rh_alloc((size_t)blocks, sizeof *part);
	if (!part)
		return -ENOMEM;
	for (int b = 0; b < blocks; b++)
		part[b] = rh_session_stage_of(session, b);
	int rc = rh_updater_in_parts(session->updater, part, devices);
	rh_free(part);
	return rc;
}

static int create_updater(struct rh_session *session)
{
	struct rh_device *device = session->devices.device[0];
	struct rh_host_queue *queue = NULL;
	int rc = device->ops->host_queue ? device->ops->host_queue(device, &queue) : 0;
	if (rc)
		return rc;
	rc = rh_updater_create(session->store, queue, &session->updater);
	if (!rc && rh_session_mode(session)->shares_norm)
		rh_updater_is_of_several(session->updater);
	if (!rc && !session->plan.bytes.host_devices)
		rh_updater_weights_first(session->updater);
	return rc ? rc : clip_by_device(session);
}

static int64_t simulated_room(const struct rh_session_machine *machine)
{
	return machine->hardware->device.memory - machine->hardware->device.reserved;
}

/* Bytes of memory of its own that each device has, 0: its memory is the host's; and how devices want their work cut. */
static int ask_devices(const struct rh_session *session, struct rh_run_machine *out)
{
	const char *device = session->config->device;
	if (!session->machine) {
		int rc = rh_devices_room(device, &out->device_room);
		return rc ? rc : rh_devices_grain(device, &out->grain);
	}
	out->device_room = simulated_room(session->machine);
	out->grain = rh_sim_grain(&session->machine->hardware->device);
	return 0;
}

/* The memory that a run may take where max_ram is not set: what is free, less 2 GiB for others. */
static int64_t free_ram(const struct rh_session *session)
{
	if (session->machine && !session->machine->ram_bytes)
		return INT64_MAX;
	return rh_max(0, (session->machine ? session->machine->ram_bytes : rh_machine_free_ram()) - ((int64_t)2 << 30));
}

/* max_ram, but no more than this process's control groups leave: above that the kernel kills. */
static int64_t allowed_ram(const struct rh_session *session)
{
	int64_t asked = session->config->max_ram, room = session->machine ? INT64_MAX : rh_machine_group_room();
	if (asked <= room)
		return asked;
	room += rh_machine_own_bytes(); /* a part of what is planned is there already: the tokenizer, the rows */
	if (asked <= room)
		return asked;
	rh_warn_once(
	        "max_ram: %.1f MiB, but this process's control group leaves %.1f: the run keeps to that (memory.max, docker's --memory)",
	        (double)asked / 1048576, (double)room / 1048576);
	return room;
}

static int read_limits(struct rh_session *session)
{
	const struct rh_list *limits = &session->config->admission_limits;
	if (!limits->count || session->box_limits)
		return 0;
	session->box_limits = rh_alloc(limits->count, sizeof *session->box_limits);
	for (size_t i = 0; session->box_limits && i < limits->count; i++)
		session->box_limits[i] = atoll(limits->item[i]);
	session->admission_limit = session->box_limits;
	return session->box_limits ? 0 : -ENOMEM;
}

int rh_session_run_machine(struct rh_session *session, struct rh_run_machine *out)
{
	const struct rh_session_machine *machine = session->machine;
	*out = (struct rh_run_machine){.devices = session->device_count,
	                               .simulated = machine != NULL,
	                               .ram_bytes = session->config->max_ram ? allowed_ram(session) : free_ram(session),
	                               .cores = machine ? machine->hardware->host.cores : rh_machine_cores()};
	return ask_devices(session, out);
}

int rh_session_rates(struct rh_session *session, struct rh_hardware *local, struct rh_run_machine *out)
{
	*local = (struct rh_hardware){0};
	out->hardware = session->machine ? session->machine->hardware : local;
	return session->machine ? 0 : rh_hardware_local(rh_machine_cores(), rh_machine_free_ram(), local, &session->rates_assumed);
}

/* The request for the plan of a run on this machine, or the simulated one. *local: of this machine, the caller's (rh_hardware_free). */
static int describe_request(struct rh_session *session, const struct rh_workload *work, enum rh_run_stages stages,
                            struct rh_hardware *local, struct rh_run_request *out)
{
	const struct rh_mode_ops *mode = rh_mode_of(session->config->mode);
	int rc = read_limits(session);
	*out = (struct rh_run_request){.config = session->config,
	                               .model = session->model,
	                               .lora = session->lora,
	                               .work = work,
	                               .order = mode->has_boxes ? &mode->order : NULL,
	                               .admission_limit = session->admission_limit,
	                               .linked_bytes = mode->part.bytes ? mode->part.bytes(session) : 0,
	                               .space = session->space,
	                               .stages = stages};
	*local = (struct rh_hardware){0};
	if (!rc)
		rc = rh_session_run_machine(session, &out->machine);
	return rc || (!session->machine && !work->train_micro_batches) ? rc : rh_session_rates(session, local, &out->machine);
}

int rh_session_search(struct rh_session *session, const struct rh_workload *work, int devices, struct rh_run_plans *out)
{
	struct rh_hardware local;
	struct rh_run_request request;
	*out = (struct rh_run_plans){0};
	int rc = open_space(session);
	if (rc)
		return rc;
	rc = describe_request(session, work, RH_STAGES_CHOSEN, &local, &request);
	request.machine.devices = devices;
	if (!rc)
		rc = rh_run_plan_search(&request, out);
	rh_hardware_free(&local);
	return rc;
}

int rh_session_set_cuts(struct rh_session *session, const int64_t *cut, int64_t count)
{
	int64_t *own = rh_alloc((size_t)count + 1, sizeof *own);
	if (!own)
		return -ENOMEM;
	memcpy(own, cut, (size_t)count * sizeof *own);
	rh_free(session->own_cuts);
	session->own_cuts = own;
	session->cut = *session->config;
	session->cut.forward_cuts = own;
	session->cut.forward_cut_count = count;
	session->config = &session->cut;
	return 0;
}

int rh_session_follow(struct rh_session *session, const struct rh_workload *work, const struct rh_run_plan *plan)
{
	RH_ASSERT(work->train_micro_batches == plan->executor.train_micro_batches);
	session->device_count = plan->executor.devices;
	int rc = read_limits(session);
	if (!rc)
		rc = rh_run_plan_copy(plan, &session->plan);
	if (rc)
		return rc;
	session->planned = 1;
	session->plan.store.space = session->space;
	session->plan.store.addresses_only = session->machine != NULL;
	rh_run_plan_cut_head(&session->plan, session->model);
	return rh_run_plan_check_nvme(&session->plan, session->config, work->train_steps);
}

int rh_session_plan(struct rh_session *session, const struct rh_workload *work, enum rh_run_stages stages)
{
	struct rh_hardware local;
	struct rh_run_request request;
	int rc = open_space(session);
	if (rc)
		return rc;
	rc = describe_request(session, work, stages, &local, &request);
	if (!rc)
		rc = rh_run_plan_make(&request, &session->plan);
	rh_hardware_free(&local);
	if (rc)
		return rc;
	session->planned = 1;
	return rh_run_plan_check_nvme(&session->plan, session->config, work->train_steps);
}

static void tell_nvme(const struct rh_session *session, int64_t steps)
{
	const struct rh_list *dirs = &session->config->nvme_dirs;
	const struct rh_run_bytes *bytes = &session->plan.bytes;
	if (bytes->nvme && !session->machine)
		rh_note("NVMe: %.1f MiB in %zu director%s; each step writes %.1f MiB to it, the run %.1f", (double)bytes->nvme / 1048576,
		        dirs->count, dirs->count == 1 ? "y" : "ies", (double)bytes->nvme_step / 1048576,
		        (double)rh_run_plan_nvme_writes(&session->plan, steps) / 1048576);
}

/* The store and the space on NVMe that the plan says, and the weights in them. */
static int open_store(struct rh_session *session, struct rh_executor_options *executor)
{
	struct rh_store_options *options = &session->plan.store;
	options->device = session->devices.device;
	options->devices = session->devices.count;
	if (!session->config->decay_embeddings)
		rh_model_spare_embeddings(session->model);
	int rc = rh_store_create(session->model->block, session->model->blocks, options, session->pool, &session->store);
	if (!rc)
		rc = rh_executor_take_space(executor);
	for (int64_t n = session->space ? session->work.nvme_records : 0; !rc && n; n--) {
		int record;
		rc = rh_space_take(session->space, session->work.nvme_record_bytes, "samples of opportunistic steps", NULL, &record);
		if (n == session->work.nvme_records)
			session->first_record = record;
	}
	if (!rc && session->space)
		rc = rh_space_reserve(session->space);
	return rc || session->machine ? rc : load_weights(session);
}

int rh_session_start(struct rh_session *session, const struct rh_workload *work)
{
	int rc = session->planned ? 0 : rh_session_plan(session, work, RH_STAGES_CHOSEN);
	if (rc)
		return rc;
	session->work = *work;
	tell_nvme(session, work->train_steps);
	int has_own_memory = session->machine ? simulated_room(session->machine) > 0 : !session->plan.bytes.host_devices;
	struct rh_executor_options options = {
	        .planned = session->plan.executor,
	        .model = session->model,
	        .plan = &session->plan.stages,
	        .admission_limit = session->admission_limit,
	        .boxes = rh_box_is_linked(&session->box) ? &session->plan.boxes : NULL,
	        .space = session->space,
	        .registers = has_own_memory,
	        .page_bytes = rh_store_page_bytes(session->model->block, session->model->blocks, &session->plan.store),
	        .wire = (enum rh_wire)session->config->link_dtype,
	        .below = session->link_below ? session->link_below : session->box.link_below,
	        .above = session->link_above ? session->link_above : session->box.link_above};
	rc = rh_pool_create(session->machine ? 1 : rh_machine_cores(), &session->pool);
	if (!rc)
		rc = open_devices(session);
	if (!rc)
		rc = open_store(session, &options);
	if (!rc && work->train_micro_batches)
		rc = create_updater(session);
	if (!rc && work->train_micro_batches && rh_session_mode(session)->part.reserve)
		rc = rh_session_mode(session)->part.reserve(session);
	if (rc)
		return rc;
	options.dropped_gradient = session->dropped_gradient;
	options.store = session->store;
	options.updater = session->updater;
	options.device = session->devices.device;
	/* beside a step half the cores come near all of the memory's bandwidth, and leave copies more of it than all would; for an update
	 * that is not stale devices wait */
	options.throttled_threads = options.planned.stale && !session->plan.bytes.host_devices ? (rh_machine_cores() + 1) / 2 : 0;
	return rh_executor_create(&options, &session->executor);
}

void rh_session_close(struct rh_session *session)
{
	rh_box_close(&session->box, 0);       /* before the memory that its messages are in */
	rh_updater_destroy(session->updater); /* first: it may listen to the executor's events */
	/* Before the memory that its transfers may still be in. Nobody asks anything of it any more: the updater is gone, and the
	 * executor is at rest between programs, its threads without a job; pages read ahead are nobody's to wait for. */
	rh_space_close(session->space);
	rh_executor_destroy(session->executor);
	rh_devices_close(&session->devices);
	rh_store_destroy(session->store);
	rh_pool_destroy(session->pool);
	rh_run_plan_free(&session->plan);
	rh_free(session->box_limits);
	rh_free(session->own_cuts ? NULL : session->cut.box_cuts.item);
	rh_free(session->own_cuts);
	rh_model_destroy(session->model);
	rh_adapter_free(&session->adapter);
	rh_tokenizer_destroy(session->tokenizer);
	rh_source_close(session->source);
	rh_model_config_free(&session->random_config);
	rh_model_config_free(&session->pipeline);
	rh_model_config_free(&session->stage);
	*session = (struct rh_session){0};
}

struct rh_micro_batch rh_micro_of(const struct rh_batch *batch)
{
	struct rh_micro_batch micro = {.ids = batch->ids,
	                               .position = batch->position,
	                               .start_q = batch->start,
	                               .start_k = batch->start,
	                               .head_row = batch->head_row,
	                               .target = batch->target,
	                               .type = batch->type};
	micro.shape = (struct rh_micro_shape){
	        .tokens = batch->tokens, .documents = batch->documents, .longest = batch->longest, .head_rows = batch->trained};
	micro.shape.typed = batch->is_typed ? batch->tokens : 0;
	micro.shape.pixels = batch->pixels;
	micro.pixel = batch->pixel;
	micro.shape.judged = batch->is_judged ? batch->documents : 0;
	micro.span = batch->span;
	micro.reference = batch->reference;
	return micro;
}
