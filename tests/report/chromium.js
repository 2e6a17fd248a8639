// launch(PATH): headless Chromium that talks to nobody; WebGL in software, for the trace viewer.
'use strict';
const {chromium} = require('playwright-core');
exports.launch = executablePath => chromium.launch({executablePath, args: ['--no-sandbox', '--disable-gpu',
  '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update',
  '--disable-sync', '--use-angle=swiftshader', '--enable-unsafe-swiftshader']});
