/* What `stress` prints: a table, a line of JSON. */
#include "cli/stress.h"

#include <stdio.h>

static const double gib = 1 << 30, mib = 1 << 20;

static int put_size(struct rh_text *out, int64_t bytes)
{
	return (double)bytes < gib ? rh_text_printf(out, "%8.1f MiB", (double)bytes / mib)
	                           : rh_text_printf(out, "%8.2f GiB", (double)bytes / gib);
}

static int put_found(const struct stress_result *result, enum rh_placement placement, struct rh_text *out)
{
	const struct rh_stress_found *found = &result->found[placement];
	char chunk[24] = "whole";
	if (!found->tokens)
		return rh_text_printf(out, "%-8s %12s  %s\n", rh_placement_name[placement], "-", found->why);
	if (found->chunk)
		snprintf(chunk, sizeof chunk, "%lld", (long long)found->chunk);
	int rc = rh_text_printf(out, "%-8s %12lld %8s %12.1f ", rh_placement_name[placement], (long long)found->tokens, chunk,
	                        found->tokens_per_second);
	if (!rc)
		rc = put_size(out, found->device_bytes);
	if (!rc)
		rc = put_size(out, found->ram_bytes);
	if (!rc)
		rc = put_size(out, found->nvme_bytes);
	if (!rc)
		rc = rh_text_printf(out, "  %s%s%s\n", *found->budget ? found->budget : "the most that is tried, or known",
		                    *found->buffer ? ": " : "", found->buffer);
	return rc;
}

static int put_tried(const struct stress_result *result, enum rh_placement placement, struct rh_text *out)
{
	const struct rh_stress_tried *tried = &result->tried[placement];
	if (!result->is_tried[placement])
		return 0;
	int rc = rh_text_printf(out, "%-8s ", rh_placement_name[placement]);
	if (!rc && !tried->reserved_tokens)
		return rh_text_printf(out, "nothing was reserved: %s\n", tried->why);
	if (!rc && tried->step_tokens == tried->reserved_tokens)
		rc = rh_text_printf(out, "a whole step of %lld tokens in %.1f s: %.1f tokens/s", (long long)tried->step_tokens,
		                    tried->step_seconds, (double)tried->step_tokens / tried->step_seconds);
	else if (!rc)
		rc = rh_text_printf(out, "all memory of a step of %lld tokens was reserved", (long long)tried->reserved_tokens);
	if (!rc && tried->step_tokens && tried->step_tokens < tried->reserved_tokens)
		rc = rh_text_printf(out, "; for a whole one there was no time, one of %lld tokens took %.1f s",
		                    (long long)tried->step_tokens, tried->step_seconds);
	else if (!rc && !tried->step_tokens)
		rc = rh_text_printf(out, "; no step was trained%s%s", *tried->why ? ": " : "", tried->why);
	if (!rc)
		rc = rh_text_printf(out, "; %.1f MiB of host memory at most, of %.1f planned; %.1f MiB of a device, of %.1f\n",
		                    (double)tried->ram_peak_bytes / mib, (double)tried->ram_planned_bytes / mib,
		                    (double)tried->device_peak_bytes / mib, (double)tried->device_planned_bytes / mib);
	return rc;
}

/* What the reader must know of the figures. */
static int put_notes(const struct stress_result *result, struct rh_text *out)
{
	int64_t positions = 0, most = 0;
	int rc = 0;
	for (int p = 0; p < RH_PLACEMENTS; p++) {
		positions = result->found[p].positions ? result->found[p].positions : positions;
		most = result->found[p].tokens > most ? result->found[p].tokens : most;
	}
	if (positions && most > positions)
		rc = rh_text_printf(
		        out,
		        "note     the model knows %lld positions: train takes longer rows with rope_scaling alone; here tokens are "
		        "random, and only memory and time count\n",
		        (long long)positions);
	if (!rc && result->rates_assumed)
		rc = rh_text_printf(out, "note     rates are guesses: roundhouse doctor --save local measures them\n");
	if (!rc && !result->is_real)
		rc = rh_text_printf(out, "note     predicted, on another machine: nothing was tried\n");
	if (!rc && result->is_out_of_time)
		rc = rh_text_printf(out, "note     the time was not enough for all of it; --time gives more\n");
	return rc;
}

int stress_put(const struct stress_result *result, struct rh_text *out)
{
	int is_tried = 0;
	int rc = rh_text_printf(out, "machine  %s, %d device%s; one sequence in each step\n",
	                        result->machine ? result->machine : "not known", result->devices, result->devices == 1 ? "" : "s");
	if (!rc)
		rc = rh_text_printf(out, "%-8s %12s %8s %12s %12s%12s%12s  %s\n", "bytes in", "tokens", "chunk", "tokens/s", "device",
		                    "host", "NVMe", "what binds");
	for (int p = 0; !rc && p < RH_PLACEMENTS; p++)
		rc = put_found(result, (enum rh_placement)p, out);
	for (int p = 0; p < RH_PLACEMENTS; p++)
		is_tried |= result->is_tried[p];
	if (!rc && is_tried)
		rc = rh_text_printf(out, "tried\n");
	for (int p = 0; !rc && p < RH_PLACEMENTS; p++)
		rc = put_tried(result, (enum rh_placement)p, out);
	return rc ? rc : put_notes(result, out);
}

static json_t *text_or_null(const char *text)
{
	return *text ? json_string(text) : json_null();
}

static json_t *known(int64_t number)
{
	return number ? json_integer(number) : json_null();
}

static json_t *found_json(const struct rh_stress_found *found)
{
	json_t *points = json_array();
	for (int i = 0; i < found->points; i++)
		(void)json_array_append_new(points, json_pack("{s:I, s:f}", "tokens", (json_int_t)found->point[i].tokens,
		                                              "tokens_per_second", found->point[i].tokens_per_second));
	return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:o}", "tokens", (json_int_t)found->tokens, "why",
	                 text_or_null(found->why), "sequence_chunk", known(found->chunk), "budget", text_or_null(found->budget), "buffer",
	                 text_or_null(found->buffer), "device_bytes", (json_int_t)found->device_bytes, "ram_bytes",
	                 (json_int_t)found->ram_bytes, "nvme_bytes", (json_int_t)found->nvme_bytes, "step_seconds", found->step_seconds,
	                 "tokens_per_second", found->tokens_per_second, "lengths", points);
}

static json_t *tried_json(const struct rh_stress_tried *tried)
{
	return json_pack("{s:I, s:I, s:b, s:f, s:I, s:I, s:I, s:I, s:o}", "reserved_tokens", (json_int_t)tried->reserved_tokens,
	                 "step_tokens", (json_int_t)tried->step_tokens, "whole_step",
	                 tried->step_tokens > 0 && tried->step_tokens == tried->reserved_tokens, "step_seconds", tried->step_seconds,
	                 "ram_planned_bytes", (json_int_t)tried->ram_planned_bytes, "ram_peak_bytes", (json_int_t)tried->ram_peak_bytes,
	                 "device_planned_bytes", (json_int_t)tried->device_planned_bytes, "device_peak_bytes",
	                 (json_int_t)tried->device_peak_bytes, "why", text_or_null(tried->why));
}

json_t *stress_json(const struct stress_result *result)
{
	json_t *placements = json_object();
	int64_t positions = 0;
	for (int p = 0; p < RH_PLACEMENTS; p++) {
		json_t *one = found_json(&result->found[p]);
		positions = result->found[p].positions ? result->found[p].positions : positions;
		(void)json_object_set_new(one, "trial", result->is_tried[p] ? tried_json(&result->tried[p]) : json_null());
		(void)json_object_set_new(placements, rh_placement_name[p], one);
	}
	return json_pack("{s:s, s:i, s:b, s:b, s:b, s:o, s:o}", "hardware", result->machine ? result->machine : "", "devices",
	                 result->devices, "rates_assumed", result->rates_assumed, "on_this_machine", result->is_real, "out_of_time",
	                 result->is_out_of_time, "model_positions", known(positions), "placements", placements);
}
