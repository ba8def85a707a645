/* Suggests a key for a name that is none: the key of this program for another trainer's name, or the nearest key. */
#include "config/config_internal.h"

#include "core/alloc.h"
#include "core/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, PART_FAR = 3 /* farness of words of a key, or of their beginnings */ };

static int least_of(int a, int b)
{
	return a < b ? a : b;
}

/* Damerau-Levenshtein distance (neighbours swapped at most once), of names cut at NAME_BYTES; another letter in place of one costs
 * `replacing`. */
static int distance(const char *a, const char *b, int replacing)
{
	int a_length = (int)strnlen(a, NAME_BYTES), b_length = (int)strnlen(b, NAME_BYTES);
	int rows[3][NAME_BYTES + 1];
	int *above2 = rows[0], *above = rows[1], *row = rows[2];
	for (int j = 0; j <= b_length; j++)
		row[j] = j;
	for (int i = 1; i <= a_length; i++) {
		int *spare = above2;
		above2 = above;
		above = row;
		row = spare;
		row[0] = i;
		for (int j = 1; j <= b_length; j++) {
			int replaced = above[j - 1] + (a[i - 1] != b[j - 1] ? replacing : 0);
			row[j] = least_of(replaced, least_of(above[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least_of(row[j], above2[j - 2] + 1);
		}
	}
	return row[b_length];
}

/* How far `name` is from being whole words of `known`, as "epochs" is of "num_train_epochs" and "modl" nearly of "model_name_or_path":
 * edits to the nearest run of words. */
static int distance_to_words(const char *name, const char *known)
{
	int best = NAME_BYTES, length = (int)strnlen(name, NAME_BYTES);
	char words[NAME_BYTES];
	for (const char *from = known; from; from = strchr(from, '_') ? strchr(from, '_') + 1 : NULL)
		for (const char *to = from; *to;) {
			to += 1 + strcspn(to + 1, "_");
			if (abs((int)(to - from) - length) >= best) /* so many edits at least */
				continue;
			snprintf(words, sizeof words, "%.*s", (int)(to - from), from);
			best = least_of(best, distance(name, words, 2)); /* one letter replaced is most often another word: stage, state */
		}
	return best;
}

/* "lr" of "learning_rate". */
static int is_initials(const char *name, const char *known)
{
	for (; *name && *known == *name; name++) {
		known += strcspn(known, "_");
		known += *known == '_';
	}
	return !*name && !*known;
}

/* "log" of "logging_steps", "val_file" of "validation_file": a run of words, each cut short or not. In half edits: 2, or 3 for words inside
 * the name. */
static int abbreviation_farness(const char *name, const char *known)
{
	for (const char *from = known; from; from = strchr(from, '_') ? strchr(from, '_') + 1 : NULL) {
		const char *at = name, *in = from;
		while (*at && *in) {
			if (*at == '_')
				in += strcspn(in, "_");
			if (*at != *in)
				break;
			at++, in++;
		}
		if (!*at)
			return from == known ? 2 : 3;
	}
	return NAME_BYTES;
}

/* How far a key is from what was written, in half edits: an edit is 2, and to have meant a part of the name costs 1. A part of less than
 * four letters is next to anything, so it must be written without a fault. */
static int farness(const char *name, const char *known)
{
	int far = 2 * distance(name, known, 1), words = distance_to_words(name, known);
	size_t length = strlen(name);
	if (is_initials(name, known))
		return 0;
	if (!words || length > 3)
		far = least_of(far, 2 * words + 1);
	return length > 2 ? least_of(far, abbreviation_farness(name, known)) : far;
}

struct nearest {
	const char *key;
	int farness;
};

/* `known` stands for `key`: is it nearer to `name` than what was found? */
static void try_name(const char *name, unsigned verbs, const char *known, const char *key, struct nearest *nearest)
{
	int index = key && !strchr(known, '*') ? config_key_find(key) : -1;
	if (index < 0 || !(config_keys[index].verbs & verbs))
		return;
	int far = farness(name, known);
	if (!nearest->key || far < nearest->farness)
		*nearest = (struct nearest){key, far};
}

/* The nearest of the keys that one of `verbs` has a use for. Other trainers' names stand for their keys. */
static const char *nearest_of(const char *name, unsigned verbs, int *farness_of_it)
{
	struct nearest nearest = {0};
	for (size_t i = 0; i < config_key_count; i++)
		try_name(name, verbs, config_keys[i].name, config_keys[i].name, &nearest);
	for (size_t i = 0; i < config_elsewheres; i++) {
		const char *names = config_elsewhere[i].names;
		for (size_t length; (length = config_elsewhere_next(&names)); names += length) {
			char known[NAME_BYTES];
			snprintf(known, sizeof known, "%.*s", (int)length, names);
			try_name(name, verbs, known, config_elsewhere[i].key, &nearest);
		}
	}
	*farness_of_it = nearest.farness;
	return nearest.key;
}

/* A third of the letters wrong: what is farther was not meant. */
static int is_near(const char *name, int far)
{
	int most = (int)strnlen(name, NAME_BYTES) / 3;
	return far <= 2 * (most ? most : 1) + 1;
}

static int is_switch(const char *name)
{
	int key = config_key_find(name);
	return key >= 0 && (config_keys[key].type == KEY_BOOL || config_keys[key].type == KEY_TRISTATE);
}

void config_suggest(const char *name, const char *verb, enum config_origin origin, char *out, size_t bytes)
{
	const struct config_shown shown = config_show(name);
	const struct config_elsewhere *found = config_elsewhere_find(name);
	int far = 0;
	unsigned bit = config_verb_bit(verb);
	const char *nearest = nearest_of(name, bit, &far);
	int is_used = !found || !found->key || (config_keys[config_key_find(found->key)].verbs & bit);
	if (origin == ORIGIN_FLAG && !is_used && far <= PART_FAR) /* of generate "adapter" is adapter_name_or_path, of train use_peft */
		found = NULL;
	if (found) {
		const char *key = found->key, *note = found->note;
		if (key)
			snprintf(out, bytes, "unknown key '%s'; here it is %s%s%s", shown.text, key, note ? ": " : "", note ? note : "");
		else
			snprintf(out, bytes, "unknown key '%s': %s", shown.text, note);
		return;
	}
	if (!strncmp(name, "no_", 3) && is_switch(name + 3)) {
		snprintf(out, bytes, "unknown key '%s'; here it is %s: false", shown.text, name + 3);
		return;
	}
	if (origin == ORIGIN_FILE && !is_near(name, far)) /* a file may hold other verbs' keys */
		nearest = nearest_of(name, VERB_ALL, &far);
	if (is_near(name, far))
		snprintf(out, bytes, "unknown key '%s'; the nearest known one is %s", shown.text, nearest);
	else
		snprintf(out, bytes, "unknown key '%s'; `roundhouse %s --help` lists all", shown.text, verb);
}

const char *config_near_file(const char *path, char out[RH_NEAR_BYTES])
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char *dir = rh_strdup(slash ? path : ".");
	struct rh_names names = {0};
	const char *nearest = NULL;
	int least = (int)strnlen(name, NAME_BYTES) / 3;
	*out = 0;
	if (dir && slash)
		dir[slash == path ? 1 : slash - path] = 0;
	if (!dir || rh_dir_list(dir, &names))
		rh_error_clear();
	for (size_t i = 0; i < names.count; i++) {
		int far = distance(name, names.name[i], 1);
		if (far > least || (nearest && far == least))
			continue;
		least = far;
		nearest = names.name[i];
	}
	if (nearest)
		snprintf(out, RH_NEAR_BYTES, "; there is %.*s%s", slash ? (int)(slash + 1 - path) : 0, path, config_show(nearest).text);
	rh_names_free(&names);
	rh_free(dir);
	return out;
}
