/* For which task a model is, and how it ends for it. */
#include "model/config_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const task_names[RH_TASKS] = {"causal_lm", "masked_lm", "sequence_classification", "image_classification"};

const struct rh_family_task *rh_model_task(const struct rh_model_config *config)
{
	return &config->family->task[config->task < 0 ? 0 : config->task];
}

const char *rh_model_architecture(const struct rh_model_config *config)
{
	const char *own = rh_model_task(config)->architecture;
	return own ? own : config->family->architecture;
}

int64_t rh_model_outputs(const struct rh_model_config *config)
{
	return rh_task_classifies(config->task) ? config->num_labels : config->vocab_size;
}

int rh_model_ties(const struct rh_model_config *config)
{
	return config->tie_word_embeddings && !rh_task_classifies(config->task);
}

static int begins_with_module(const char *name, const char *module)
{
	return module && !strncmp(name, module, strlen(module)) && name[strlen(module)] == '.';
}

int rh_model_may_lack(const struct rh_model_config *config, const char *tensor)
{
	const struct rh_family_task *task = rh_model_task(config);
	if (!task->architecture || !config->architecture || !strcmp(config->architecture, task->architecture))
		return 0;
	return begins_with_module(tensor, task->dense) || begins_with_module(tensor, task->norm) ||
	       begins_with_module(tensor, task->classifier) || begins_with_module(tensor, task->bias);
}

/* 1: config.json's architecture is this family's; *task: for which task. */
int config_is_architecture(const struct rh_family *family, const char *name, enum rh_task_kind *task)
{
	for (int t = 0; t < RH_TASKS; t++)
		if (family->task[t].architecture && !strcmp(family->task[t].architecture, name)) {
			*task = (enum rh_task_kind)t;
			return 1;
		}
	*task = family->bare && !strcmp(family->bare, name) ? RH_TASK_UNSET : RH_TASK_CAUSAL_LM;
	return *task == RH_TASK_UNSET || !strcmp(family->architecture, name);
}

static int has_tasks(const struct rh_family *family)
{
	for (int t = 0; t < RH_TASKS; t++)
		if (family->task[t].architecture)
			return 1;
	return 0;
}

static int does_task(const struct rh_family *family, int task)
{
	return has_tasks(family) ? family->task[task].architecture != NULL : task == RH_TASK_CAUSAL_LM;
}

static void list_tasks(const struct rh_family *family, char *out, size_t size)
{
	size_t used = 0;
	*out = 0;
	for (int t = 0; t < RH_TASKS && used < size; t++)
		if (does_task(family, t))
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", task_names[t]);
}

int rh_model_config_set_task(struct rh_model_config *config, enum rh_task_kind task, int64_t num_labels, const char *where)
{
	char tasks[160];
	list_tasks(config->family, tasks, sizeof tasks);
	if (task == RH_TASK_UNSET)
		task = config->task;
	if (task == RH_TASK_UNSET)
		return rh_fail(-EINVAL, "%s: %s has no head, so task must say what to train it for (%s)", where, config->family->bare,
		               tasks);
	if (!does_task(config->family, task))
		return rh_fail(-EINVAL, "task: %s is nothing that models of type %s do here (%s)", task_names[task],
		               config->family->model_type, tasks);
	config->task = task;
	config->num_labels = num_labels ? num_labels : config->num_labels;
	if (rh_task_classifies(task) && config->num_labels == 1)
		return rh_fail(-EINVAL,
		               "%s: a model with one label is a regression, which is not built; set num_labels to the number of classes",
		               where);
	return 0;
}

/* id2label, num_labels, or transformers' 2. */
int config_parse_labels(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *names = json_object_get(json, "id2label");
	const char *kind = NULL;
	out->num_labels = json_is_object(names) ? (int64_t)json_object_size(names) : 2;
	int rc = rh_json_int(json, "num_labels", where, RH_JSON_OPTIONAL, &out->num_labels);
	if (!rc)
		rc = rh_json_string(json, "problem_type", where, RH_JSON_OPTIONAL, &kind);
	if (!rc && kind && strcmp(kind, "single_label_classification"))
		rc = rh_fail(-EINVAL, "%s: problem_type '%s' is not supported (single_label_classification is)", where, kind);
	if (!rc && (out->num_labels < 1 || out->num_labels > 1 << 20))
		rc = rh_fail(-EINVAL, "%s: %lld labels; there must be 1 to %d", where, (long long)out->num_labels, 1 << 20);
	return rc;
}
