/* Tensors of made-up blocks: what the store asks of them. */
#ifndef RH_TESTS_TENSOR_H
#define RH_TESTS_TENSOR_H

#include "model/model.h"

#define TENSOR(is, r, c, at, decay, dimensions)                                                                                            \
	{                                                                                                                                  \
		.name = (is), .rows = (r), .cols = (c), .offset = (at), .decays = (decay), .rank = (dimensions)                            \
	}

#endif
