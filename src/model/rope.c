/* Scalings of rotary frequencies, each after the function of transformers' modeling_rope_utils.py that its head names. */
#include "model/rope.h"

#include <math.h>

const char *const rh_rope_type_name[RH_ROPE_TYPES] = {
        [RH_ROPE_DEFAULT] = "default",          [RH_ROPE_LINEAR] = "linear", [RH_ROPE_LLAMA3] = "llama3",
        [RH_ROPE_DYNAMIC] = "dynamic",          [RH_ROPE_YARN] = "yarn",     [RH_ROPE_LONGROPE] = "longrope",
        [RH_ROPE_PROPORTIONAL] = "proportional"};

int rh_rope_varies(const struct rh_rope *rope)
{
	return !rope->divisor && (rope->type == RH_ROPE_DYNAMIC || rope->type == RH_ROPE_LONGROPE);
}

static float power(double theta, int64_t i, int64_t rotary)
{
	return (float)pow(theta, (double)((float)(2 * i) / (float)rotary));
}

/* _compute_llama3_parameters */
static float llama3(const struct rh_rope *rope, float freq)
{
	double original = (double)rope->original_max_position, low = rope->low_freq_factor, high = rope->high_freq_factor;
	double wavelength = 2 * M_PI / (double)freq;
	float slow = freq / (float)rope->factor;
	if (wavelength > original / low)
		return slow;
	if (wavelength < original / high)
		return freq;
	float smooth = (float)((original / wavelength - low) / (high - low));
	return (1 - smooth) * slow + smooth * freq;
}

/* _compute_dynamic_ntk_parameters: beyond the length it was trained at the base grows with the length. */
static double dynamic_theta(const struct rh_rope *rope, int64_t rotary, int64_t positions)
{
	double longest = (double)rope->original_max_position, dim = (double)rotary;
	double length = positions > rope->original_max_position ? (double)positions : longest;
	return rope->theta * pow(rope->factor * length / longest - (rope->factor - 1), dim / (dim - 2));
}

/* The pair that turns `rotations` times within the original length. */
static double correction(const struct rh_rope *rope, double rotations, int64_t rotary)
{
	return (double)rotary * log((double)rope->original_max_position / (rotations * 2 * M_PI)) / (2 * log(rope->theta));
}

/* _compute_yarn_parameters: fast pairs stay, slow ones are stretched, a ramp lies between. */
static void yarn(const struct rh_rope *rope, int64_t rotary, float *inv_freq)
{
	double low = correction(rope, rope->beta_fast ? rope->beta_fast : 32, rotary);
	double high = correction(rope, rope->beta_slow ? rope->beta_slow : 1, rotary);
	if (!rope->plain_ramp)
		low = floor(low), high = ceil(high);
	low = fmax(low, 0), high = fmin(high, (double)(rotary - 1));
	if (low == high)
		high += 0.001;
	for (int64_t i = 0; i < rotary / 2; i++) {
		float pos = power(rope->theta, i, rotary), ramp = ((float)i - (float)low) / (float)(high - low);
		float keep = 1 - fminf(fmaxf(ramp, 0), 1);
		inv_freq[i] = 1 / ((float)rope->factor * pos) * (1 - keep) + 1 / pos * keep;
	}
}

static double yarn_mscale(double factor, double mscale)
{
	return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double attention_factor(const struct rh_rope *rope)
{
	if (rope->divisor || (rope->type != RH_ROPE_YARN && rope->type != RH_ROPE_LONGROPE))
		return 1;
	if (rope->attention_factor)
		return rope->attention_factor;
	if (rope->type == RH_ROPE_LONGROPE)
		return rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log((double)rope->original_max_position));
	if (rope->mscale && rope->mscale_all_dim)
		return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
	return yarn_mscale(rope->factor, 1);
}

void rh_rope_table(const struct rh_rope *rope, int64_t rotary, int64_t positions, struct rh_rope_table *out)
{
	double theta = rope->type == RH_ROPE_DYNAMIC && !rope->divisor ? dynamic_theta(rope, rotary, positions) : rope->theta;
	const float *ext = positions > rope->original_max_position ? rope->long_factor : rope->short_factor;
	*out = (struct rh_rope_table){.scale = (float)attention_factor(rope)};
	int64_t width = rope->type == RH_ROPE_PROPORTIONAL ? rope->width : rotary;
	for (int64_t i = 0; i < rotary / 2; i++) {
		float pos = power(theta, i, width), freq = 1.0f / pos;
		if (rope->divisor)
			freq /= rope->divisor[i];
		else if (rope->type == RH_ROPE_LINEAR || rope->type == RH_ROPE_PROPORTIONAL)
			freq /= (float)rope->factor;
		else if (rope->type == RH_ROPE_LLAMA3)
			freq = llama3(rope, freq);
		else if (rope->type == RH_ROPE_LONGROPE)
			freq = 1.0f / (ext[i] * pos);
		out->inv_freq[i] = freq;
	}
	if (rope->type == RH_ROPE_YARN && !rope->divisor)
		yarn(rope, rotary, out->inv_freq);
}
