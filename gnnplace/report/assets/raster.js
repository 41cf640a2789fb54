// Pixels of one lane, set one by one and copied at once: as quick with 50,000 ops as with fifty.
const strips = new Map();

// A colour as a pixel, laid over another one by a share of it.
function pixel(colour, over = colour, share = 1) {
  const [top, below] = [channels(colour), channels(over)];
  const [red, green, blue] = top.map((value, k) => Math.round(share * value + (1 - share) * below[k]));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function channels(colour) {
  const hex = colour.length === 4 ? [...colour.slice(1)].map(digit => digit + digit).join("") : colour.slice(1);
  return [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16));
}

// A strip of pixels of a size, all of one colour; strips of one size are one and the same.
function strip(width, height, background) {
  const key = `${width} ${height}`;
  if (!strips.has(key)) {
    if (strips.size > 8) strips.clear();
    const image = new ImageData(width, height);
    strips.set(key, { image, width, height, pixels: new Uint32Array(image.data.buffer) });
  }
  const found = strips.get(key);
  found.pixels.fill(background);
  return found;
}

function fillColumn(found, x, top, bottom, colour) {
  const { pixels, width } = found;
  for (let at = top * width + x, end = bottom * width + x; at < end; at += width) pixels[at] = colour;
}

// Where a strip of the timeline lies on a canvas, in its own pixels.
function lying(width) {
  const dense = devicePixelRatio || 1, left = Math.round(LEFT * dense);
  return { dense, left, width: Math.max(1, Math.round((width - RIGHT) * dense) - left) };
}
