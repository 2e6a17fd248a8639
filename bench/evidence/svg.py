"""A small line chart as SVG, one line a system: y logarithmic, x logarithmic or a list of names."""
import html
import math

COLORS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#000000", "#882255", "#44AA99", "#999933",
          "#AA4499"]
LEFT, TOP, WIDTH, HEIGHT = 70, 36, 420, 250


def chart(title, x_label, y_label, lines):
    """`lines`: {name: [(x, y), ...]}, y above 0, x numbers above 0 or names; None where nothing can be drawn."""
    lines = {name: points for name, points in lines.items() if points}
    xs = list(dict.fromkeys(x for points in lines.values() for x, _ in points))
    named = any(isinstance(x, str) for x in xs)
    if not named:
        xs.sort()
    ys = [y for points in lines.values() for _, y in points]
    if len(xs) < 2:
        return None
    low, high = math.log10(min(ys)), math.log10(max(ys))
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)

    def across(x):
        if named:
            return LEFT + WIDTH * (xs.index(x) + 0.5) / len(xs)
        return LEFT + WIDTH * math.log(x / xs[0]) / math.log(xs[-1] / xs[0])

    def up(y):
        return TOP + HEIGHT * (high - math.log10(y)) / (high - low)

    height = max(TOP + HEIGHT + 66, TOP + 18 * len(lines) + 20)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="680" height="{height}" fill="white"/>', f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    for power in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            value = digit * 10.0 ** power
            if low <= math.log10(value) <= high:
                out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="#dddddd"/>')
                out.append(f'<text x="{LEFT - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for x in xs:  # a name's parts stand below each other
        for line, part in enumerate(x.split(", ") if named else [f"{x:g}"]):
            out.append(f'<text x="{across(x):.1f}" y="{TOP + HEIGHT + 16 + 10 * line}" text-anchor="middle" '
                       f'font-size="{8 if named else 12}">{html.escape(part)}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 54}" text-anchor="middle">{html.escape(x_label)}</text>')
    out.append(f'<text x="16" y="{TOP + HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {TOP + HEIGHT / 2})">{y_label}</text>')
    for i, (name, points) in enumerate(lines.items()):
        color = COLORS[i % len(COLORS)]
        places = [(across(x), up(y)) for x, y in sorted(points, key=lambda p: across(p[0]))]
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="' +
                   " ".join(f"{a:.1f},{b:.1f}" for a, b in places) + '"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in places]
        out.append(f'<rect x="{LEFT + WIDTH + 14}" y="{TOP + 18 * i}" width="11" height="11" fill="{color}"/>')
        out.append(f'<text x="{LEFT + WIDTH + 31}" y="{TOP + 18 * i + 10}">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"
