// Builds the page's files into the Python package. They are committed, so that an installation builds nothing.
// The first line of page.js has the hash of everything they are built from; a unit test compares it.
import { createHash } from "node:crypto";
import { copyFileSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const HERE = import.meta.dirname;
const OUT = join(HERE, "..", "thunderfleet_view", "web", "static");
const COPIED = ["index.html", "page.css", "icon.svg"];

const sources = [
  ...["build.mjs", "package-lock.json", "package.json", "tsconfig.json"],
  ...readdirSync(join(HERE, "src")).sort().map((name) => join("src", name)),
];
const hash = createHash("sha256");
for (const name of sources) {
  hash.update(name + "\n");
  hash.update(createHash("sha256").update(readFileSync(join(HERE, name))).digest());
}

const result = await build({
  entryPoints: [join(HERE, "src", "main.ts")],
  outfile: join(OUT, "page.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  metafile: true,
  legalComments: "none",
  banner: { js: `// sources ${hash.digest("hex")}; third-party licenses: licenses.txt` },
});
for (const name of COPIED) copyFileSync(join(HERE, "src", name), join(OUT, name));

const packages = new Set();
for (const name of Object.keys(result.metafile.inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(name);
  if (found) packages.add(found[1]);
}
const licenses = [...packages].sort().map((name) => {
  const folder = join(HERE, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
const rule = "-".repeat(80);
writeFileSync(join(OUT, "licenses.txt"), `The page contains these packages.\n\n${licenses.join(`\n${rule}\n\n`)}`);
