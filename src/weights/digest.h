/* Tells base models apart by their weights, without reading all of them. */
#ifndef RH_WEIGHTS_DIGEST_H
#define RH_WEIGHTS_DIGEST_H

#include "ckpt/source.h"
#include "model/model.h"

enum { RH_DIGEST = 17 }; /* 16 hexadecimal digits */

/* Of some rows of each base tensor, always the same ones, as values of `dtype`: models whose values are equal have the same digest,
 * whatever their files' format is. A tensor that the source lacks, which begins at random, counts by its name; one that is made packed as
 * it is read counts by its form, too. */
int rh_base_digest(const struct rh_source *source, const struct rh_model *model, enum rh_dtype dtype, char digest[RH_DIGEST]) RH_MUST;

#endif
