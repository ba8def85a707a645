/* Tensors between a store and safetensors files, in pieces: no tensor is ever held twice. */
#ifndef RH_WEIGHTS_TENSORS_H
#define RH_WEIGHTS_TENSORS_H

#include "ckpt/source.h"
#include "core/pool.h"
#include "model/model.h"
#include "offload/store.h"

/* Which bytes of a tensor go into a file: its master weights; array n of its optimizer state (RH_TENSOR_STATE + n), as it lies in
 * memory; or the published copy, which devices read and which may lack the newest update. */
enum rh_tensor_part { RH_TENSOR_PUBLISHED = -1, RH_TENSOR_WEIGHT, RH_TENSOR_STATE };

#define RH_TENSORS_BUFFER_BYTES (1 << 20) /* memory for reading or writing a file of tensors */

/* Where a tensor lies in the store, and its name and dtype in the file. */
struct rh_tensor_place {
	int block, tensor;
	int part;            /* enum rh_tensor_part */
	enum rh_dtype dtype; /* in the file: F32 or BF16; of state and published copies their own */
	int turned;          /* of weights: the file has the matrix transposed */
	char *name;
	size_t order; /* in the list as it was made */
};
struct rh_tensor_list {
	struct rh_tensor_place *place;
	size_t count, capacity;
};
void rh_tensor_list_free(struct rh_tensor_list *list);
/* Appends the weights of trainable blocks, of adapters, of all blocks, or the published copies of trainable blocks, named as the model
 * names them with `suffix` behind. */
enum rh_tensor_scope { RH_TENSORS_TRAINABLE, RH_TENSORS_ADAPTERS, RH_TENSORS_ALL, RH_TENSORS_PUBLISHED };
int rh_tensor_list_add(struct rh_tensor_list *list, const struct rh_model *model, enum rh_tensor_scope scope, enum rh_dtype dtype,
                       const char *suffix) RH_MUST;
/* Appends all optimizer state of trainable blocks. */
int rh_tensor_list_add_state(struct rh_tensor_list *list, const struct rh_model *model, const struct rh_store *store) RH_MUST;

/* Fills the store from a file that must hold exactly these tensors (F32 or BF16 or F16; state as it was saved), and `others` more. */
int rh_tensors_load(const char *path, const struct rh_tensor_list *list, int64_t others, const struct rh_model *model,
                    struct rh_store *store) RH_MUST;

/* The source's name of a base tensor, which may be written to `room`; NULL: it does not have it. And: is the tensor an adapter's? */
enum { RH_SOURCE_NAME = 192 };
const char *rh_weights_source_name(const struct rh_source *source, const struct rh_model *model, const struct rh_tensor *tensor,
                                   char room[RH_SOURCE_NAME]);
int rh_weights_is_adapter(const struct rh_tensor *tensor);

/* Told between blocks: bytes of blocks that are loaded, of all. */
struct rh_loading {
	void (*tell)(void *context, int64_t done_bytes, int64_t bytes);
	void *context;
};
/* Every base tensor from the model's files, or (source NULL) its initial value; adapters always start from their initial value. By all of
 * the pool's threads. */
int rh_weights_load(const struct rh_source *source, uint64_t seed, const struct rh_model *model, struct rh_store *store,
                    struct rh_pool *pool, const struct rh_loading *loading) RH_MUST; /* loading: may be NULL */

#endif
