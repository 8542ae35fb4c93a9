// What the TypeScript compiler does not do: the Lua scripts and the icons belong beside the compiled code.
const { rm } = require('node:fs/promises');
const { src, dest, series, parallel } = require('gulp');

const copy = (files) => () => src(files, { base: '.', encoding: false }).pipe(dest('dist'));

// n8n-node copies every picture that it finds.
const dropPictures = () => rm('dist/docs', { recursive: true, force: true });

exports.default = series(parallel(copy('engine/lua/**/*.lua'), copy('nodes/**/*.svg')), dropPictures);
