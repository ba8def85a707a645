#include "checkpoint/disk_room.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>
#include <sys/statvfs.h>

enum {
	SMALL_FILES_BYTES = 16 << 10, /* configuration, state and checksums; each rounded up to the disk's blocks */
	TOKEN_BYTES = 96              /* of a token and its merge in tokenizer.json; published ones have 75 to 134 */
};

/* Free bytes of the disk that `path` will lie on: of its nearest parent that is there. -1: the disk does not say. */
static int free_bytes(const char *path, int64_t *bytes)
{
	struct statvfs disk;
	char *at = rh_strdup(path);
	*bytes = -1;
	if (!at)
		return -ENOMEM;
	for (;;) {
		if (statvfs(*at ? at : ".", &disk) == 0) {
			*bytes = disk.f_blocks ? (int64_t)((double)disk.f_bavail * (double)disk.f_frsize) : -1;
			break;
		}
		char *slash = strrchr(at, '/');
		if (!slash && !*at)
			break;
		if (slash == at && at[1])
			at[1] = 0; /* "/name": the root is next */
		else
			*(slash ? slash : at) = 0;
	}
	rh_free(at);
	return 0;
}

/* Bytes of optimizer state of so many parameters; Adafactor's as if every tensor were a vector's fourth. */
static int64_t state_bytes(const struct rh_config *config, int64_t parameters)
{
	switch (config->optim) {
	case RH_OPTIM_ADAMW:
		return config->state_layout == RH_LAYOUT_SPLIT8 ? parameters * 2 + parameters / 32 : parameters * 8;
	case RH_OPTIM_LION:
		return parameters * 4;
	case RH_OPTIM_SGD:
		return config->momentum > 0 ? parameters * 4 : 0;
	default:
		return parameters;
	}
}

/* Bytes of a result, and of a checkpoint. */
static void sizes_of(const struct rh_session *session, int64_t *output, int64_t *checkpoint)
{
	const struct rh_config *config = session->config;
	int64_t trainable, all, width = session->lora ? 4 : rh_dtype_bytes(config->dtype, 1);
	rh_model_parameters(session->model, &trainable, &all);
	*output = trainable * width + SMALL_FILES_BYTES;
	if (session->tokenizer)
		*output += (int64_t)rh_tokenizer_size(session->tokenizer) * TOKEN_BYTES;
	*checkpoint = *output + SMALL_FILES_BYTES;
	if (!config->save_only_model) /* optimizer state, and masters where the weights' file holds less */
		*checkpoint += state_bytes(config, trainable) + (config->dtype == RH_F32 || session->lora ? 0 : trainable * 4);
}

int rh_disk_room_check(const struct rh_session *session, int64_t checkpoints)
{
	const struct rh_config *config = session->config;
	int64_t output, checkpoint, more = checkpoints, available;
	int there = rh_checkpoint_count(config->output_dir);
	if (there < 0)
		return there;
	sizes_of(session, &output, &checkpoint);
	if (config->save_total_limit > 0) /* a new one is whole before the oldest goes */
		more = rh_min(more, rh_max(1, config->save_total_limit + 1 + config->load_best_model_at_end - there));
	int rc = free_bytes(config->output_dir, &available);
	if (rc)
		return rc;
	double needed = (double)output + (double)more * (double)checkpoint;
	if (available < 0 || needed <= (double)available)
		return 0;
	return rh_fail(
	        -ENOSPC,
	        "output_dir: the disk of %s has %.2f MiB free, and the run will write %.2f (result %.2f, up to %lld checkpoints of %.2f "
	        "at a time beside those that are there); make room, or lower save_total_limit",
	        config->output_dir, (double)available / 1048576, needed / 1048576, (double)output / 1048576, (long long)more,
	        (double)checkpoint / 1048576);
}

int64_t rh_disk_room_of_checkpoint(const struct rh_session *session)
{
	int64_t output, checkpoint;
	sizes_of(session, &output, &checkpoint);
	return checkpoint;
}

int rh_disk_room_check_one(const struct rh_session *session)
{
	int64_t output, checkpoint, available;
	sizes_of(session, &output, &checkpoint);
	int rc = free_bytes(session->config->output_dir, &available);
	if (rc || available < 0 || checkpoint <= available)
		return rc;
	return rh_fail(-ENOSPC, "output_dir: the disk of %s has %.2f MiB free, and a checkpoint takes %.2f: No space left on device",
	               session->config->output_dir, (double)available / 1048576, (double)checkpoint / 1048576);
}
