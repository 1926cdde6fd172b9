import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { defineConfig, type Plugin } from 'vite';

// notice writes NOTICE.txt: every package that is bundled, with its version and the text of its licence.
function notice(): Plugin {
  return {
    name: 'notice',
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== 'chunk') continue;
        for (const id of chunk.moduleIds) {
          const folder = packageOf(id);
          if (folder) folders.add(folder);
        }
      }
      const texts = [...folders].map(describe).sort();
      const head = 'This page is built from Spillway\'s own code, and from the packages below, under their licences.\n';
      this.emitFile({ type: 'asset', fileName: 'NOTICE.txt', source: [head, ...texts].join('\n' + '-'.repeat(80) + '\n') });
    },
  };
}

// packageOf is the folder of the package that a module is of, behind the last node_modules of its path.
function packageOf(id: string): string | undefined {
  return /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id.replace(/\0/g, ''))?.[0];
}

function describe(folder: string): string {
  const pkg = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  const text = file ? readFileSync(join(folder, file), 'utf8') : undefined;
  if (text === undefined) throw new Error(`${pkg.name} has no file with its licence`);
  return `${pkg.name} ${pkg.version} (${pkg.license})\n\n${text.replace(/\r\n/g, '\n').trim()}\n`;
}

// Names without hashes: the server sends an ETag, and a change shows as the change of a file.
export default defineConfig({
  base: './',
  plugins: [notice()],
  build: {
    outDir: '../dist',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        entryFileNames: 'assets/[name].js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: 'assets/[name][extname]',
      },
    },
  },
});
