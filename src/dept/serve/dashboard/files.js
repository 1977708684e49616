// Images that were chosen or dropped, folders included.

/** The images of a change event of a file input, or of a drop. */
export async function imagesOf(event) {
  const found = event.dataTransfer ? await dropped(event.dataTransfer) : [...event.target.files];
  return found.filter(({ type }) => type.startsWith("image/"));
}

async function dropped({ items }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  return (await Promise.all(entries.map(inside))).flat();
}

async function inside(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader(), entries = [];
  for (;;) { // a reader gives its folder in parts, and an empty one at the end
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return (await Promise.all(entries.map(inside))).flat();
    entries.push(...some);
  }
}
