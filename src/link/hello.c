#include "link/hello.h"

#include <string.h>

/* One line's name and value, printable and cut to what a message can show. */
struct greeting {
	char name[64], value[160];
};

static void copy_printable(char *out, size_t bytes, const char *from, size_t length)
{
	size_t used = length < bytes - 1 ? length : bytes - 1;
	for (size_t i = 0; i < used; i++)
		out[i] = from[i] >= 32 && from[i] != 127 ? from[i] : '?';
	out[used] = 0;
}

static struct greeting split(const char *line, size_t length)
{
	struct greeting out;
	const char *equals = memchr(line, '=', length);
	size_t name = equals ? (size_t)(equals - line) : length;
	copy_printable(out.name, sizeof out.name, line, name);
	copy_printable(out.value, sizeof out.value, equals ? equals + 1 : "", equals ? length - name - 1 : 0);
	return out;
}

static size_t line_length(const char *at, size_t length)
{
	const char *end = memchr(at, '\n', length);
	return end ? (size_t)(end - at) : length;
}

int hello_compare(const char *mine, const char *theirs, size_t length)
{
	size_t left = strlen(mine);
	while (left || length) {
		size_t here = line_length(mine, left), there = line_length(theirs, length);
		if (here != there || memcmp(mine, theirs, here)) {
			struct greeting ours = split(mine, here), others = split(theirs, there);
			if (strcmp(ours.name, others.name))
				return rh_fail(-EINVAL,
				               "the boxes run different versions: the peer greets with '%s' where this box has '%s'",
				               others.name, ours.name);
			return rh_fail(-EINVAL, "the boxes differ in %s: '%s' here, '%s' at the peer; both must have the same", ours.name,
			               ours.value, others.value);
		}
		mine += here + (here < left);
		theirs += there + (there < length);
		left -= here + (here < left);
		length -= there + (there < length);
	}
	return 0;
}
