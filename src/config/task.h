/* What a model is trained for. */
#ifndef RH_CONFIG_TASK_H
#define RH_CONFIG_TASK_H

enum rh_task_kind {
	RH_TASK_UNSET = -1,
	RH_TASK_CAUSAL_LM,
	RH_TASK_MASKED_LM,
	RH_TASK_SEQUENCE_CLASSIFICATION,
	RH_TASK_IMAGE_CLASSIFICATION,
	RH_TASKS
};

/* Each row has one of a few labels. */
static inline int rh_task_classifies(enum rh_task_kind task)
{
	return task == RH_TASK_SEQUENCE_CLASSIFICATION || task == RH_TASK_IMAGE_CLASSIFICATION;
}

#endif
