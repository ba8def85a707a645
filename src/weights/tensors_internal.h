/* What reading (tensors.c) and writing (tensors_out.c) of tensors share. */
#ifndef RH_WEIGHTS_TENSORS_INTERNAL_H
#define RH_WEIGHTS_TENSORS_INTERNAL_H

#include "weights/tensors.h"

enum { PIECE = RH_TENSORS_BUFFER_BYTES / 4 }; /* elements moved at a time */

static inline const struct rh_tensor *tensors_tensor(const struct rh_model *model, const struct rh_tensor_place *place)
{
	return &model->block[place->block].tensor[place->tensor];
}

/* Of a place that is optimizer state. */
struct rh_state tensors_state(const struct rh_store *store, const struct rh_tensor_place *place);
/* Shape in the file. Returns the rank. */
int tensors_shape(const struct rh_tensor_place *place, const struct rh_model *model, const struct rh_store *store, int64_t shape[2]);

/* How many elements from the file's element `first` on lie together here too, at most a PIECE of them; *here: where. */
int64_t tensors_run(const struct rh_tensor *tensor, int64_t first, int64_t total, int64_t *here);

/* What files hold as one matrix whose columns are those of many of ours in turn: a band of its rows at a time, in one half of `buffer`,
 * each of our matrices' part of it in the other. `pass` moves the band to or from the file. */
struct tensors_band {
	float *rows, *part;
	int64_t first, count; /* rows */
};
int tensors_each_band(const struct rh_tensor *tensor, float *buffer, int (*pass)(void *user, const struct tensors_band *band), void *user);

#endif
