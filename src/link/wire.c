#include "link/wire.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/philox.h"

#include <math.h>
#include <string.h>

enum { STEP_BYTES = sizeof(float) /* of a row's step, behind its values */ };
static const float LARGEST = 127;

static int is_coded(enum rh_wire wire, enum rh_dtype dtype)
{
	return wire == RH_WIRE_INT8 || (wire == RH_WIRE_BF16 && dtype == RH_F32);
}

int64_t rh_wire_bytes(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	if (!is_coded(wire, dtype))
		return rh_dtype_bytes(dtype, rows * cols);
	return wire == RH_WIRE_INT8 ? rows * (cols + STEP_BYTES) : rh_dtype_bytes(RH_BF16, rows * cols);
}

static float get(enum rh_dtype dtype, const char *memory, int64_t index)
{
	uint16_t half;
	float value;
	if (dtype == RH_F32)
		return memcpy(&value, memory + index * 4, 4), value;
	return memcpy(&half, memory + index * 2, 2), rh_bf16_to_f32(half);
}

static void put(enum rh_dtype dtype, char *memory, int64_t index, float value)
{
	uint16_t half = rh_f32_to_bf16(value);
	if (dtype == RH_F32)
		memcpy(memory + index * 4, &value, 4);
	else
		memcpy(memory + index * 2, &half, 2);
}

/* NaN where a value is not finite. */
static float largest_of(enum rh_dtype dtype, const char *memory, int64_t first, int64_t cols)
{
	float largest = 0;
	for (int64_t i = 0; i < cols; i++) {
		float size = fabsf(get(dtype, memory, first + i));
		largest = size <= 3e38f ? fmaxf(largest, size) : NAN;
		if (isnan(largest))
			break;
	}
	return largest;
}

/* Values are read before coded ones, which are shorter, take their place. */
static void code_row(enum rh_dtype dtype, int64_t row, int64_t cols, const struct rh_wire_draw *draw, char *memory)
{
	char *out = memory + row * (cols + STEP_BYTES);
	float step = largest_of(dtype, memory, row * cols, cols) / LARGEST, steps = step > 0 ? 1 / step : 0;
	struct rh_philox_block block = {{0}};
	uint64_t key = draw->seed ^ (uint64_t)RH_PHILOX_WIRE << 56 ^ (uint64_t)draw->box << 33 ^ (uint64_t)draw->kind << 32;
	for (int64_t i = 0; i < cols; i++) {
		if (i % 4 == 0)
			block = rh_philox(key, draw->step, draw->micro_batch, (uint32_t)row, (uint32_t)(i / 4));
		float up = floorf(get(dtype, memory, row * cols + i) * steps + rh_philox_unit(block.word[i % 4]));
		out[i] = (char)(isnan(step) ? 0 : (int)fmaxf(-LARGEST, fminf(LARGEST, up)));
	}
	memcpy(out + cols, &step, STEP_BYTES);
}

void rh_wire_code(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols, const struct rh_wire_draw *draw, void *memory)
{
	if (!is_coded(wire, dtype))
		return;
	RH_ASSERT((dtype == RH_F32 || dtype == RH_BF16) && cols >= STEP_BYTES);
	for (int64_t i = 0; wire == RH_WIRE_BF16 && i < rows * cols; i++)
		put(RH_BF16, memory, i, get(RH_F32, memory, i));
	for (int64_t row = 0; wire == RH_WIRE_INT8 && row < rows; row++)
		code_row(dtype, row, cols, draw, memory);
}

/* From the last to the first, as values take more room than coded ones. */
void rh_wire_decode(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols, void *memory)
{
	if (!is_coded(wire, dtype))
		return;
	for (int64_t i = rows * cols - 1; wire == RH_WIRE_BF16 && i >= 0; i--)
		put(RH_F32, memory, i, get(RH_BF16, memory, i));
	for (int64_t row = rows - 1; wire == RH_WIRE_INT8 && row >= 0; row--) {
		const signed char *in = (const signed char *)memory + row * (cols + STEP_BYTES);
		float step;
		memcpy(&step, in + cols, STEP_BYTES);
		for (int64_t i = cols - 1; i >= 0; i--)
			put(dtype, memory, row * cols + i, (float)in[i] * step);
	}
}

uint64_t rh_wire_tag(enum rh_boundary_kind kind, int64_t step, int64_t micro_batch)
{
	enum { MICRO_BATCHES = 1 << 24 };
	return (uint64_t)1 << 63 | (uint64_t)step * 2 * MICRO_BATCHES | (uint64_t)micro_batch * 2 | (uint64_t)kind;
}

static struct rh_boundary_shape shape_of(const struct rh_wire_boundary *boundary)
{
	return rh_boundary_shape(boundary->model, boundary->layer, boundary->tokens);
}

int64_t rh_wire_boundary_bytes(const struct rh_wire_boundary *boundary)
{
	const struct rh_model *model = boundary->model;
	struct rh_boundary_shape shape = shape_of(boundary);
	return rh_wire_bytes(boundary->wire, model->dtype, shape.rows, shape.cols) + rh_load_bytes(model);
}

/* From the one's end to the other's: the buffer's, and the message's. */
static void move_load(const struct rh_wire_boundary *boundary, char *buffer, int64_t from_end, int64_t to_end)
{
	int64_t load = rh_load_bytes(boundary->model);
	memmove(buffer + to_end - load, buffer + from_end - load, (size_t)load);
}

void rh_wire_boundary_code(const struct rh_wire_boundary *boundary, const struct rh_wire_draw *draw, char *buffer)
{
	struct rh_boundary_shape shape = shape_of(boundary);
	rh_wire_code(boundary->wire, boundary->model->dtype, shape.rows, shape.cols, draw, buffer);
	move_load(boundary, buffer, shape.bytes, rh_wire_boundary_bytes(boundary));
}

void rh_wire_boundary_decode(const struct rh_wire_boundary *boundary, char *buffer)
{
	struct rh_boundary_shape shape = shape_of(boundary);
	move_load(boundary, buffer, rh_wire_boundary_bytes(boundary), shape.bytes);
	rh_wire_decode(boundary->wire, boundary->model->dtype, shape.rows, shape.cols, buffer);
}
