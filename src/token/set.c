#include "token/set.h"

#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

void set_free(struct set *set)
{
	rh_free(set->range);
	*set = (struct set){0};
}

static int by_first(const void *a, const void *b)
{
	const struct unicode_range *x = a, *y = b;
	return x->first < y->first ? -1 : x->first > y->first;
}

/* After ranges were appended from index `old` on. Single additions mostly come in ascending order, and then nothing is sorted. */
static void tidy(struct set *set, size_t old)
{
	if (old < set->count && (old == 0 || set->range[old].first > set->range[old - 1].last + 1) && set->count - old == 1)
		return;
	qsort(set->range, set->count, sizeof(*set->range), by_first);
	size_t out = 0;
	for (size_t i = 1; i < set->count; i++) {
		if (set->range[i].first <= set->range[out].last + 1) {
			if (set->range[i].last > set->range[out].last)
				set->range[out].last = set->range[i].last;
		} else {
			set->range[++out] = set->range[i];
		}
	}
	if (set->count)
		set->count = out + 1;
}

static int append(struct set *set, uint32_t first, uint32_t last)
{
	int rc = rh_grow(&set->range, &set->capacity, set->count + 1, sizeof(*set->range));
	if (!rc)
		set->range[set->count++] = (struct unicode_range){first, last};
	return rc;
}

int set_add(struct set *set, uint32_t first, uint32_t last)
{
	int rc = append(set, first, last);
	if (!rc)
		tidy(set, set->count - 1);
	return rc;
}

static int unite_ranges(struct set *set, const struct unicode_range *range, size_t count)
{
	size_t old = set->count;
	int rc = 0;
	for (size_t i = 0; i < count && !rc; i++)
		rc = append(set, range[i].first, range[i].last);
	if (rc)
		set->count = old;
	else
		tidy(set, old);
	return rc;
}

int set_unite(struct set *set, const struct set *other)
{
	return unite_ranges(set, other->range, other->count);
}

int set_intersect(struct set *set, const struct set *other)
{
	struct set both = {0};
	int rc = 0;
	for (size_t i = 0, j = 0; i < set->count && j < other->count && !rc;) {
		struct unicode_range a = set->range[i], b = other->range[j];
		uint32_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
		if (first <= last)
			rc = append(&both, first, last);
		if (a.last < b.last)
			i++;
		else
			j++;
	}
	if (rc) {
		set_free(&both);
		return rc;
	}
	set_free(set);
	*set = both;
	return 0;
}

int set_negate(struct set *set)
{
	struct set rest = {0};
	uint32_t next = 0;
	int rc = 0;
	for (size_t i = 0; i < set->count && !rc; i++) {
		if (set->range[i].first > next)
			rc = append(&rest, next, set->range[i].first - 1);
		next = set->range[i].last + 1;
	}
	if (!rc && next < UNICODE_END)
		rc = append(&rest, next, UNICODE_END - 1);
	if (rc) {
		set_free(&rest);
		return rc;
	}
	set_free(set);
	*set = rest;
	return 0;
}

static int has(const struct set *set, uint32_t point)
{
	size_t low = 0, high = set->count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (set->range[middle].last < point)
			low = middle + 1;
		else
			high = middle;
	}
	return low < set->count && set->range[low].first <= point;
}

int set_ignore_case(struct set *set)
{
	struct unicode_runs runs = unicode_case_runs();
	struct set more = {0};
	int rc = 0;
	for (size_t i = 0; i < runs.count; i++)
		for (uint32_t c = runs.run[i].first; c <= runs.run[i].last && !rc; c += (uint32_t)runs.run[i].stride)
			if (has(set, c)) {
				uint32_t other = (uint32_t)((int32_t)c + runs.run[i].delta);
				rc = append(&more, other, other);
			}
	if (!rc)
		rc = set_unite(set, &more);
	set_free(&more);
	return rc;
}

static int add_table(struct set *set, enum unicode_set table)
{
	struct unicode_ranges ranges = unicode_set(table);
	return unite_ranges(set, ranges.range, ranges.count);
}

/* What the steps give one of the values in the bit mask (categories) or exactly `value` (scripts, mask 0). */
static int add_steps(struct set *set, struct unicode_steps steps, uint64_t mask, uint32_t value)
{
	size_t old = set->count;
	int rc = 0;
	for (size_t i = 0; i < steps.count && !rc; i++) {
		uint32_t v = steps.step[i] & 255;
		if (mask ? mask >> v & 1 : v == value)
			rc = append(set, steps.step[i] >> 8, (i + 1 < steps.count ? steps.step[i + 1] >> 8 : UNICODE_END) - 1);
	}
	if (rc)
		set->count = old;
	else if (set->count > old)
		tidy(set, old);
	return rc;
}

#define BIT(category)  (1ull << UNICODE_##category)
#define LETTERS        (BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO))
#define MARKS          (BIT(MN) | BIT(MC) | BIT(ME))
#define NUMBERS        (BIT(ND) | BIT(NL) | BIT(NO))
#define PUNCTUATION    (BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO))
#define SYMBOLS        (BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO))
#define SEPARATORS     (BIT(ZS) | BIT(ZL) | BIT(ZP))
#define OTHERS         (BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN))
#define EVERY_CATEGORY ((1ull << (UNICODE_CN + 1)) - 1)

/* Names in lower case without spaces, '-' and '_'. `table` is -1 where the categories say it all. */
static const struct {
	const char *name;
	uint64_t categories;
	int table;
} named_sets[] = {
        {"l", LETTERS, -1},
        {"letter", LETTERS, -1},
        {"lu", BIT(LU), -1},
        {"uppercaseletter", BIT(LU), -1},
        {"ll", BIT(LL), -1},
        {"lowercaseletter", BIT(LL), -1},
        {"lt", BIT(LT), -1},
        {"titlecaseletter", BIT(LT), -1},
        {"lm", BIT(LM), -1},
        {"modifierletter", BIT(LM), -1},
        {"lo", BIT(LO), -1},
        {"otherletter", BIT(LO), -1},
        {"lc", BIT(LU) | BIT(LL) | BIT(LT), -1},
        {"m", MARKS, -1},
        {"mark", MARKS, -1},
        {"mn", BIT(MN), -1},
        {"nonspacingmark", BIT(MN), -1},
        {"mc", BIT(MC), -1},
        {"spacingmark", BIT(MC), -1},
        {"me", BIT(ME), -1},
        {"enclosingmark", BIT(ME), -1},
        {"n", NUMBERS, -1},
        {"number", NUMBERS, -1},
        {"nd", BIT(ND), -1},
        {"decimalnumber", BIT(ND), -1},
        {"nl", BIT(NL), -1},
        {"letternumber", BIT(NL), -1},
        {"no", BIT(NO), -1},
        {"othernumber", BIT(NO), -1},
        {"p", PUNCTUATION, -1},
        {"punctuation", PUNCTUATION, -1},
        {"pc", BIT(PC), -1},
        {"connectorpunctuation", BIT(PC), -1},
        {"pd", BIT(PD), -1},
        {"dashpunctuation", BIT(PD), -1},
        {"ps", BIT(PS), -1},
        {"openpunctuation", BIT(PS), -1},
        {"pe", BIT(PE), -1},
        {"closepunctuation", BIT(PE), -1},
        {"pi", BIT(PI), -1},
        {"initialpunctuation", BIT(PI), -1},
        {"pf", BIT(PF), -1},
        {"finalpunctuation", BIT(PF), -1},
        {"po", BIT(PO), -1},
        {"otherpunctuation", BIT(PO), -1},
        {"s", SYMBOLS, -1},
        {"symbol", SYMBOLS, -1},
        {"sm", BIT(SM), -1},
        {"mathsymbol", BIT(SM), -1},
        {"sc", BIT(SC), -1},
        {"currencysymbol", BIT(SC), -1},
        {"sk", BIT(SK), -1},
        {"modifiersymbol", BIT(SK), -1},
        {"so", BIT(SO), -1},
        {"othersymbol", BIT(SO), -1},
        {"z", SEPARATORS, -1},
        {"separator", SEPARATORS, -1},
        {"zs", BIT(ZS), -1},
        {"spaceseparator", BIT(ZS), -1},
        {"zl", BIT(ZL), -1},
        {"lineseparator", BIT(ZL), -1},
        {"zp", BIT(ZP), -1},
        {"paragraphseparator", BIT(ZP), -1},
        {"c", OTHERS, -1},
        {"other", OTHERS, -1},
        {"cc", BIT(CC), -1},
        {"control", BIT(CC), -1},
        {"cntrl", BIT(CC), -1},
        {"cf", BIT(CF), -1},
        {"format", BIT(CF), -1},
        {"co", BIT(CO), -1},
        {"privateuse", BIT(CO), -1},
        {"cn", BIT(CN), -1},
        {"unassigned", BIT(CN), -1},
        {"any", EVERY_CATEGORY, -1},
        {"assigned", EVERY_CATEGORY & ~BIT(CN), -1},
        {"digit", BIT(ND), -1},
        {"alphabetic", LETTERS | BIT(NL), UNICODE_OTHER_ALPHABETIC},
        {"alpha", LETTERS | BIT(NL), UNICODE_OTHER_ALPHABETIC},
        {"alnum", LETTERS | BIT(NL) | BIT(ND), UNICODE_OTHER_ALPHABETIC},
        {"uppercase", BIT(LU), UNICODE_OTHER_UPPERCASE},
        {"upper", BIT(LU), UNICODE_OTHER_UPPERCASE},
        {"lowercase", BIT(LL), UNICODE_OTHER_LOWERCASE},
        {"lower", BIT(LL), UNICODE_OTHER_LOWERCASE},
        {"whitespace", 0, UNICODE_WHITE_SPACE},
        {"space", 0, UNICODE_WHITE_SPACE},
        {"word", LETTERS | BIT(NL) | BIT(ND) | BIT(PC) | MARKS, UNICODE_OTHER_ALPHABETIC},
        {"emoji", 0, UNICODE_EMOJI},
        {"extendedpictographic", 0, UNICODE_PICTOGRAPHIC},
};

int set_add_named(struct set *set, const char *name, enum set_syntax syntax)
{
	char plain[64];
	size_t length = 0;
	for (const char *at = name; *at; at++)
		if (*at != ' ' && *at != '-' && *at != '_') {
			if (length + 1 == sizeof(plain))
				return 0;
			plain[length++] = (char)(*at >= 'A' && *at <= 'Z' ? *at + 32 : *at);
		}
	plain[length] = 0;
	int rc = 0;
	if (!strcmp(plain, "punct")) /* the library's two syntaxes disagree */
		return (rc = add_steps(set, unicode_categories(), syntax == SET_BRACKET ? PUNCTUATION | SYMBOLS : PUNCTUATION, 0)) ? rc : 1;
	if (!strcmp(plain, "ascii"))
		return (rc = set_add(set, 0, 127)) ? rc : 1;
	if (!strcmp(plain, "xdigit"))
		return (rc = set_add(set, '0', '9')) || (rc = set_add(set, 'A', 'F')) || (rc = set_add(set, 'a', 'f')) ? rc : 1;
	if (!strcmp(plain, "blank"))
		return (rc = add_steps(set, unicode_categories(), BIT(ZS), 0)) || (rc = set_add(set, '\t', '\t')) ? rc : 1;
	for (size_t i = 0; i < sizeof(named_sets) / sizeof(*named_sets); i++) {
		if (strcmp(plain, named_sets[i].name))
			continue;
		if (named_sets[i].categories)
			rc = add_steps(set, unicode_categories(), named_sets[i].categories, 0);
		if (!rc && named_sets[i].table >= 0)
			rc = add_table(set, (enum unicode_set)named_sets[i].table);
		return rc ? rc : 1;
	}
	uint32_t script = syntax == SET_PROPERTY ? unicode_script_by_name(plain) : 0;
	if (!script)
		return 0;
	rc = add_steps(set, unicode_scripts(), 0, script);
	return rc ? rc : 1;
}

int set_add_bare_word(struct set *set)
{
	int rc = set_add_named(set, "word", SET_PROPERTY);
	return rc < 0 ? rc : add_table(set, UNICODE_OTHER_WORD);
}
